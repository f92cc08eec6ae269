"""Finds the family of a checkpoint; an architecture that is not here is refused by name."""

from __future__ import annotations

from sipd.errors import UnsupportedModel
from sipd.models import llama, mistral, qwen2
from sipd.models.program import Program
from sipd.weights.tensor_table import Checkpoint

GGUF_ARCHITECTURES = {"llama": llama.from_gguf, "qwen2": qwen2.from_gguf}
HF_ARCHITECTURES = {
    "LlamaForCausalLM": llama.from_safetensors,
    "MistralForCausalLM": mistral.from_safetensors,
    "Qwen2ForCausalLM": qwen2.from_safetensors,
}


def build_program(checkpoint: Checkpoint, read_vector: llama.FactorReader) -> Program:
    """The program of a checkpoint; raises UnsupportedModel or TensorMismatch."""
    if checkpoint.file_format == "gguf":
        name = checkpoint.metadata.get("general.architecture")
        if isinstance(name, str) and name in GGUF_ARCHITECTURES:
            return GGUF_ARCHITECTURES[name](checkpoint, read_vector)
        known = list(GGUF_ARCHITECTURES)
    else:
        names = checkpoint.metadata.get("architectures")
        name = names[0] if isinstance(names, list) and names else None
        if isinstance(name, str) and name in HF_ARCHITECTURES:
            return HF_ARCHITECTURES[name](checkpoint)
        known = list(HF_ARCHITECTURES)
    raise UnsupportedModel(
        f"{checkpoint.path}: architecture {name!r} is not supported; wanted one of {', '.join(known)}"
    )
