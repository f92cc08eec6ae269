"""Logits of a llama-family GGUF by transformers, over weights dequantised to F32.

Runs in the oracle's own environment: `python oracle_logits.py MODEL IDS.json OUT.npy`. IDS.json is a list of windows of
token ids; OUT.npy gets (all positions, vocab_size) f32 in that order.
"""

# mypy: disable-error-code="import-not-found"
from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from transformers import LlamaConfig, LlamaForCausalLM

_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def load(path: Path) -> LlamaForCausalLM:
    """Returns the model in F32; raises KeyError for a tensor or a key that this script does not know."""
    reader = GGUFReader(path)

    def value(key: str) -> Any:  # noqa: ANN401 - whatever the file says
        return reader.fields[f"llama.{key}"].contents()

    tensors = {
        tensor.name: dequantize(tensor.data, tensor.tensor_type).reshape(tuple(reversed(tensor.shape.tolist())))
        for tensor in reader.tensors
    }
    n_heads, n_kv_heads = value("attention.head_count"), value("attention.head_count_kv")
    config = LlamaConfig(
        vocab_size=tensors["token_embd.weight"].shape[0],
        hidden_size=value("embedding_length"),
        intermediate_size=value("feed_forward_length"),
        num_hidden_layers=value("block_count"),
        num_attention_heads=n_heads,
        num_key_value_heads=n_kv_heads,
        max_position_embeddings=value("context_length"),
        rms_norm_eps=value("attention.layer_norm_rms_epsilon"),
        rope_parameters={
            "rope_type": "default",
            "rope_theta": value("rope.freq_base") if "llama.rope.freq_base" in reader.fields else 10000.0,
        },
        tie_word_embeddings="output.weight" not in tensors,
        attn_implementation="eager",
        torch_dtype="float32",
    )
    state = {}
    for name, tensor in tensors.items():
        heads = n_heads if name.endswith("attn_q.weight") else n_kv_heads
        is_rotated = name.endswith(("attn_q.weight", "attn_k.weight"))
        state[_oracle_name(name)] = torch.from_numpy(np.array(_unrotate(tensor, heads) if is_rotated else tensor))
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model = LlamaForCausalLM(config)
    model.load_state_dict(state, strict=True)
    return model.float().eval()


def _oracle_name(name: str) -> str:
    if name in _NAMES:
        return _NAMES[name]
    _, block, kind, suffix = name.split(".")
    return f"model.layers.{block}.{_BLOCK_NAMES[kind]}.{suffix}"


def _unrotate(weight: np.ndarray, n_heads: int) -> np.ndarray:
    """Undoes GGUF's order of q and k rows: pairs that are rotated together lie side by side there."""
    n_out, n_in = weight.shape
    return weight.reshape(n_heads, n_out // n_heads // 2, 2, n_in).swapaxes(1, 2).reshape(n_out, n_in)


def main() -> None:
    """Computes and saves."""
    model_path, ids_path, out_path = map(Path, sys.argv[1:4])
    torch.set_num_threads(2)
    model = load(model_path)
    with torch.inference_mode():
        parts = [model(torch.tensor([window])).logits[0].numpy() for window in json.loads(ids_path.read_text())]
    np.save(out_path, np.concatenate(parts))


if __name__ == "__main__":
    main()
