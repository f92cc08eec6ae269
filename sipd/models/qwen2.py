"""The qwen2 family: the same block as llama with biases on q, k and v, and rotary pairs half a head apart."""

from __future__ import annotations

from sipd.models import llama
from sipd.models.hf_class import QWEN2
from sipd.models.program import Program
from sipd.weights.tensor_table import Checkpoint


def from_gguf(checkpoint: Checkpoint, read_vector: llama.FactorReader) -> Program:
    """The program of a GGUF file."""
    return llama.from_gguf(checkpoint, read_vector, architecture="qwen2")


def from_safetensors(checkpoint: Checkpoint) -> Program:
    """The program of a Hugging Face checkpoint."""
    return llama.from_safetensors(checkpoint, QWEN2)
