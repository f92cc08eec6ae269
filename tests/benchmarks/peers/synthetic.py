"""Random-weight GGUF files of a real model's shape, written tensor by tensor.

Invariant: a file is written under another name first, so that one that exists is whole. Layers share their random
blocks: speed does not depend on what the weights are.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from sipd.weights.gguf_array import ValueType
from sipd.weights.tensor_table import QuantType
from tests.gguf_writer import Typed, encode_string, encode_value
from tests.quant_blocks import random_blocks
from tests.vocabularies import gpt2_metadata

_ALIGNMENT = 32
_FILE_TYPES = {QuantType.Q4_0: 2, QuantType.Q8_0: 7, QuantType.Q4_K: 15}  # llama_ftype
_PLAIN_VOCAB = 3 + 256  # specials and bytes


@dataclass(frozen=True, slots=True)
class Shape:
    """A llama of this shape; the defaults are TinyLlama's."""

    n_layers: int = 22
    d_model: int = 2048
    d_ff: int = 5632
    n_heads: int = 32
    n_kv_heads: int = 4
    vocab_size: int = 32000
    context_length: int = 2048


SYNTHETIC = {
    "tinyllama-q4_0": QuantType.Q4_0,
    "tinyllama-q8_0": QuantType.Q8_0,
    "tinyllama-q4_k_m": QuantType.Q4_K,
}


def write_model(path: Path, quant: QuantType, shape: Shape) -> Path:
    """Writes a model unless it is there; returns `path`. Q4_K makes the usual mix with Q6_K."""
    if path.exists():
        return path
    tensors = list(_tensors(quant, shape))
    metadata = _metadata(quant, shape)
    header = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    header += [encode_string(key) + encode_value(value) for key, value in metadata.items()]
    at = 0
    for name, dims, quant_type in tensors:
        header.append(encode_string(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *reversed(dims)))
        header.append(struct.pack("<IQ", quant_type.type_id, at))
        at += _padded(quant_type.row_bytes(math.prod(dims)))
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(b"".join(header))
        file.write(bytes(-file.tell() % _ALIGNMENT))
        for _, dims, quant_type in tensors:
            data = _blocks(dims, quant_type)
            file.write(data)
            file.write(bytes(_padded(len(data)) - len(data)))
    return partial.rename(path)


def _padded(n_bytes: int) -> int:
    return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT


@lru_cache(maxsize=16)
def _blocks(dims: tuple[int, ...], quant_type: QuantType) -> bytes:
    """The data of a tensor; norms are 1."""
    if len(dims) == 1:
        return np.ones(dims, "<f4").tobytes()
    return random_blocks(np.random.default_rng([*dims, quant_type.type_id]), quant_type, dims, dims[-1] ** -0.5)


def _tensors(quant: QuantType, shape: Shape) -> Iterator[tuple[str, tuple[int, ...], QuantType]]:
    d, d_kv = shape.d_model, shape.d_model // shape.n_heads * shape.n_kv_heads
    high = QuantType.Q6_K if quant is QuantType.Q4_K else quant
    yield "token_embd.weight", (shape.vocab_size, d), quant
    for layer in range(shape.n_layers):
        block = f"blk.{layer}."
        mixed = high if _gets_more_bits(layer, shape.n_layers) else quant
        yield block + "attn_norm.weight", (d,), QuantType.F32
        yield block + "attn_q.weight", (d, d), quant
        yield block + "attn_k.weight", (d_kv, d), quant
        yield block + "attn_v.weight", (d_kv, d), mixed
        yield block + "attn_output.weight", (d, d), quant
        yield block + "ffn_norm.weight", (d,), QuantType.F32
        yield block + "ffn_gate.weight", (shape.d_ff, d), quant
        yield block + "ffn_up.weight", (shape.d_ff, d), quant
        yield block + "ffn_down.weight", (d, shape.d_ff), mixed
    yield "output_norm.weight", (d,), QuantType.F32
    yield "output.weight", (shape.vocab_size, d), high


def _gets_more_bits(layer: int, n_layers: int) -> bool:
    """Whether the K mixes give this layer's v and down Q6_K: the first and last eighth, and every third between."""
    eighth = n_layers // 8
    return layer < eighth or layer >= 7 * n_layers // 8 or (layer - eighth) % 3 == 2


def _metadata(quant: QuantType, shape: Shape) -> dict[str, object]:
    vocabulary = gpt2_metadata(_PLAIN_VOCAB + 1)
    n_more = shape.vocab_size - _PLAIN_VOCAB - 1
    tokens, types = vocabulary["tokenizer.ggml.tokens"], vocabulary["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list)
    assert isinstance(types, list)
    vocabulary["tokenizer.ggml.tokens"] = [*tokens, *(f"synthetic{i}" for i in range(n_more))]
    vocabulary["tokenizer.ggml.token_type"] = Typed([*types, *([1] * n_more)], ValueType.INT32)
    return {
        "general.architecture": "llama",
        "general.name": f"synthetic {shape.n_layers}x{shape.d_model} {quant.name}",
        "general.file_type": _FILE_TYPES[quant],
        "general.quantization_version": 2,
        "llama.block_count": shape.n_layers,
        "llama.context_length": shape.context_length,
        "llama.embedding_length": shape.d_model,
        "llama.feed_forward_length": shape.d_ff,
        "llama.attention.head_count": shape.n_heads,
        "llama.attention.head_count_kv": shape.n_kv_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": shape.d_model // shape.n_heads,
        "llama.vocab_size": shape.vocab_size,
    } | vocabulary
