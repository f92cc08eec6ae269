"""The sliding window of attention, as each kind of file states it.

Invariant: None means that a position sees all positions before it. A window of w shows a position itself and the
w - 1 before it, so that up to w positions it hides nothing.
"""

from __future__ import annotations

from sipd.models.fields import Fields

_MISSING_KEY = 4096  # transformers' default in both classes; null in the file means none
_MISSING_FIRST_LAYER = 28  # transformers' default of Qwen2Config.max_window_layers


def gguf_window(fields: Fields, key: str) -> int | None:
    """The window of a GGUF file, whose 0 means none; raises UnsupportedModel."""
    return fields.integer(f"{key}attention.sliding_window", 0, low=0) or None


def no_window(_fields: Fields) -> int | None:
    """The window of LlamaForCausalLM: none, whatever key an older configuration left in the file."""
    return None


def mistral_window(fields: Fields) -> int | None:
    """The window of MistralForCausalLM, which knows no `use_sliding_window`; raises UnsupportedModel."""
    if "sliding_window" in fields.values and fields.values["sliding_window"] is None:
        return None
    return fields.integer("sliding_window", _MISSING_KEY)


def qwen2_window(fields: Fields) -> int | None:
    """The window of those blocks of Qwen2ForCausalLM that have one, None when no block has; raises UnsupportedModel."""
    if not fields.values.get("use_sliding_window"):
        return None
    kinds = fields.values.get("layer_types")
    if isinstance(kinds, list):
        is_used = "sliding_attention" in kinds
    else:
        first_layer = fields.integer("max_window_layers", _MISSING_FIRST_LAYER, low=0)
        is_used = first_layer < fields.integer("num_hidden_layers")
    return mistral_window(fields) if is_used else None
