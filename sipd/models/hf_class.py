"""What the classes of transformers do where config.json is silent; they differ only in this and in the window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sipd.models.fields import Fields
from sipd.models.window import mistral_window, no_window, qwen2_window

MISSING_RMS_EPS = 1e-6  # in all three classes


@dataclass(frozen=True, slots=True)
class HfClass:
    """One class; the numbers stand for keys that are missing."""

    architecture: str
    n_kv_heads: int | None  # None: one for each query head
    context_length: int
    window: Callable[[Fields], int | None]
    heeds_bias_keys: bool  # whether attention_bias and mlp_bias say which biases there are


LLAMA = HfClass("llama", None, 2048, no_window, heeds_bias_keys=True)
MISTRAL = HfClass("llama", 8, 131072, mistral_window, heeds_bias_keys=True)
QWEN2 = HfClass("qwen2", 32, 32768, qwen2_window, heeds_bias_keys=False)
