"""The mistral family: the llama block under a sliding window, which bounds the context; its GGUF files say llama."""

from __future__ import annotations

from sipd.models import llama
from sipd.models.hf_class import MISTRAL
from sipd.models.program import Program
from sipd.weights.tensor_table import Checkpoint


def from_safetensors(checkpoint: Checkpoint) -> Program:
    """The program of a Hugging Face checkpoint."""
    return llama.from_safetensors(checkpoint, MISTRAL)
