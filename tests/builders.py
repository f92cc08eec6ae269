"""Builds tiny model files for tests: GGUF and Hugging Face checkpoints of any shape, quant type and seed.

Invariant: a float weight depends on seed, name and shape only, so a GGUF file and a checkpoint built with the same
seed hold the same model (the GGUF one with its q and k rows permuted, as converters do for llama).
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sipd.weights.tensor_table import QuantType
from tests.gguf_writer import GgufWriter, Typed, encode_string, encode_value
from tests.quant_blocks import encode_floats, random_blocks
from tests.vocabularies import gpt2_metadata, spm_metadata

__all__ = [
    "GgufWriter",
    "ModelShape",
    "Typed",
    "build_gguf",
    "build_safetensors",
    "encode_string",
    "encode_value",
    "random_blocks",
    "safetensors_bytes",
]

_HF_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_HF_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The shape of a tiny model; `head_dim` 0 is d_model / n_heads, `has_qkv_bias` None is as the family has it."""

    arch: str = "llama"
    n_layers: int = 2
    d_model: int = 64
    n_heads: int = 4
    n_kv_heads: int = 2
    d_ff: int = 96
    vocab_size: int = 320
    context_length: int = 512
    head_dim: int = 0
    rope_theta: float = 10000.0
    is_tied: bool = False
    has_qkv_bias: bool | None = None

    @property
    def d_head(self) -> int:
        """Width of one head."""
        return self.head_dim or self.d_model // self.n_heads

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yields GGUF name and row-major shape of every tensor but rope_freqs."""
        d, d_q, d_kv = self.d_model, self.n_heads * self.d_head, self.n_kv_heads * self.d_head
        yield "token_embd.weight", (self.vocab_size, d)
        has_bias = self.arch == "qwen2" if self.has_qkv_bias is None else self.has_qkv_bias
        for layer in range(self.n_layers):
            block = f"blk.{layer}."
            yield block + "attn_norm.weight", (d,)
            for role, width in (("attn_q", d_q), ("attn_k", d_kv), ("attn_v", d_kv)):
                yield f"{block}{role}.weight", (width, d)
                if has_bias:
                    yield f"{block}{role}.bias", (width,)
            yield block + "attn_output.weight", (d, d_q)
            yield block + "ffn_norm.weight", (d,)
            yield block + "ffn_gate.weight", (self.d_ff, d)
            yield block + "ffn_up.weight", (self.d_ff, d)
            yield block + "ffn_down.weight", (d, self.d_ff)
        yield "output_norm.weight", (d,)
        if not self.is_tied:
            yield "output.weight", (self.vocab_size, d)


def build_gguf(
    path: Path,
    *,
    arch: str = "llama",
    n_layers: int = 2,
    d_model: int = 64,
    n_heads: int = 4,
    n_kv_heads: int = 2,
    d_ff: int = 96,
    vocab_size: int = 320,
    context_length: int = 512,
    head_dim: int = 0,
    rope_theta: float = 10000.0,
    quant: QuantType = QuantType.F32,
    quant_by_role: Mapping[str, QuantType] | None = None,
    metadata: Mapping[str, object] | None = None,
    tied: bool = False,
    qkv_bias: bool | None = None,
    with_vocab: str | None = None,
    rope_freqs: bool = False,
    without: tuple[str, ...] = (),
    extra: Mapping[str, tuple[int, ...]] | None = None,
    alignment: int = 32,
    seed: int = 0,
) -> Path:
    """Writes a whole tiny model and returns `path`.

    `quant` is the type of all matrices, `quant_by_role` overrides it by role ("token_embd", "attn_q", "ffn_down",
    "output" ...); norms, biases and rope_freqs are F32. `metadata` overrides or adds keys; None drops a key.
    `with_vocab` is "gpt2", "spm" or None. `without` drops tensors by name, `extra` adds F32 ones by name and shape.
    """
    shape = ModelShape(
        arch, n_layers, d_model, n_heads, n_kv_heads, d_ff, vocab_size, context_length, head_dim, rope_theta, tied,
        qkv_bias,
    )  # fmt: skip
    writer = GgufWriter(alignment=alignment)
    entries = _gguf_metadata(shape, with_vocab)
    if alignment != 32:
        entries["general.alignment"] = alignment
    for key, value in (entries | dict(metadata or {})).items():
        if value is not None:
            writer.add(key, value)
    if rope_freqs:
        factors = np.geomspace(1.0, 8.0, shape.d_head // 2, dtype=np.float32)
        writer.add_tensor("rope_freqs.weight", factors.shape, QuantType.F32.type_id, factors.tobytes())
    for name, dims in [*shape.tensors(), *(extra or {}).items()]:
        if name in without:
            continue
        role = name.rsplit(".", 2)[-2]
        quant_type = (quant_by_role or {}).get(role, quant) if len(dims) > 1 else QuantType.F32
        writer.add_tensor(name, dims, quant_type.type_id, _gguf_data(shape, name, dims, quant_type, seed))
    return writer.write(path)


def build_safetensors(
    directory: Path,
    *,
    arch: str = "llama",
    n_layers: int = 2,
    d_model: int = 64,
    n_heads: int = 4,
    n_kv_heads: int = 2,
    d_ff: int = 96,
    vocab_size: int = 320,
    context_length: int = 512,
    head_dim: int = 0,
    rope_theta: float = 10000.0,
    dtype: QuantType = QuantType.F32,
    config: Mapping[str, object] | None = None,
    tied: bool = False,
    qkv_bias: bool | None = None,
    n_shards: int = 1,
    without: tuple[str, ...] = (),
    extra: Mapping[str, tuple[int, ...]] | None = None,
    seed: int = 0,
) -> Path:
    """Writes config.json and the weights (with an index when `n_shards` > 1) and returns `directory`.

    `dtype` is F32, F16 or BF16. `config` overrides or adds keys; None drops a key. `without` and `extra` go by the
    Hugging Face name ("model.layers.0.mlp.up_proj.weight").
    """
    shape = ModelShape(
        arch, n_layers, d_model, n_heads, n_kv_heads, d_ff, vocab_size, context_length, head_dim, rope_theta, tied,
        qkv_bias,
    )  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    settings = _hf_config(shape, dtype) | dict(config or {})
    kept = {key: value for key, value in settings.items() if value is not None}
    (directory / "config.json").write_text(json.dumps(kept, indent=1))
    tensors = [(_hf_name(name), dims, _weight(name, dims, seed)) for name, dims in shape.tensors()]
    tensors += [(name, dims, _weight(name, dims, seed)) for name, dims in (extra or {}).items()]
    tensors = [entry for entry in tensors if entry[0] not in without]
    weight_map: dict[str, str] = {}
    for shard in range(n_shards):
        file_name = f"model-{shard + 1:05}-of-{n_shards:05}.safetensors" if n_shards > 1 else "model.safetensors"
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        data = b""
        for name, dims, values in tensors[shard::n_shards]:
            raw = encode_floats(values, dtype)
            header[name] = {"dtype": dtype.name, "shape": dims, "data_offsets": [len(data), len(data) + len(raw)]}
            data += raw
            weight_map[name] = file_name
        (directory / file_name).write_bytes(safetensors_bytes(header, data))
    if n_shards > 1:
        index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def safetensors_bytes(header: Mapping[str, object] | bytes, data: bytes, header_bytes: int | None = None) -> bytes:
    """Returns a safetensors file; a `header` of bytes is taken as it is, `header_bytes` overrides its length."""
    if not isinstance(header, bytes):
        header = json.dumps(header).encode()
        header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header) if header_bytes is None else header_bytes) + header + data


def _gguf_metadata(shape: ModelShape, with_vocab: str | None) -> dict[str, object]:
    arch = shape.arch
    entries: dict[str, object] = {
        "general.architecture": arch,
        "general.name": f"tiny {arch}",
        f"{arch}.block_count": shape.n_layers,
        f"{arch}.context_length": shape.context_length,
        f"{arch}.embedding_length": shape.d_model,
        f"{arch}.feed_forward_length": shape.d_ff,
        f"{arch}.attention.head_count": shape.n_heads,
        f"{arch}.attention.head_count_kv": shape.n_kv_heads,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.rope.freq_base": shape.rope_theta,
        f"{arch}.rope.dimension_count": shape.d_head,
        f"{arch}.vocab_size": shape.vocab_size,
    }
    if shape.head_dim:
        entries |= {f"{arch}.attention.key_length": shape.head_dim, f"{arch}.attention.value_length": shape.head_dim}
    if with_vocab == "gpt2":
        entries |= gpt2_metadata(shape.vocab_size)
    elif with_vocab == "spm":
        entries |= spm_metadata(shape.vocab_size)
    elif with_vocab is not None:
        raise ValueError(f'with_vocab is {with_vocab!r}, wanted "gpt2", "spm" or None')
    return entries


def _hf_config(shape: ModelShape, dtype: QuantType) -> dict[str, object]:
    names = {QuantType.F32: "float32", QuantType.F16: "float16", QuantType.BF16: "bfloat16"}
    return {
        "architectures": [_HF_CLASSES.get(shape.arch, "UnknownForCausalLM")],
        "model_type": shape.arch,
        "hidden_size": shape.d_model,
        "intermediate_size": shape.d_ff,
        "num_hidden_layers": shape.n_layers,
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "head_dim": shape.head_dim or None,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.context_length,
        "rms_norm_eps": 1e-5,
        "rope_theta": shape.rope_theta,
        "hidden_act": "silu",
        "tie_word_embeddings": shape.is_tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": names[dtype],
        # transformers' Qwen2 has the bias built in and no such key.
        "attention_bias": bool(shape.has_qkv_bias) if shape.arch != "qwen2" else None,
    }


def _hf_name(name: str) -> str:
    """Returns the Hugging Face name of a GGUF tensor name."""
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{_HF_NAMES[parts[2]]}.{parts[3]}"
    return f"{_HF_NAMES[parts[0]]}.{parts[1]}"


def _generator(name: str, seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def _std(name: str, dims: tuple[int, ...]) -> float:
    """Returns a standard deviation that keeps activations near 1: embeddings 0.5, matrices 1/sqrt(columns)."""
    if name.startswith("token_embd"):
        return 0.5
    return float(dims[-1] ** -0.5) if len(dims) > 1 else 0.1


def _weight(name: str, dims: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    """Returns float weights in Hugging Face order; norms lie around 1."""
    values = _generator(name, seed).standard_normal(dims, np.float32) * np.float32(_std(name, dims))
    return values + np.float32(1.0) if "norm" in name else values


def _gguf_data(shape: ModelShape, name: str, dims: tuple[int, ...], quant_type: QuantType, seed: int) -> bytes:
    """Returns a tensor's bytes; float q and k of llama are permuted as converters do, blocks are simply random."""
    if quant_type.block_size > 1:
        return random_blocks(_generator(name, seed), quant_type, dims, _std(name, dims))
    values = _weight(name, dims, seed)
    role = name.rsplit(".", 2)[-2]
    if shape.arch == "llama" and role in {"attn_q", "attn_k"}:
        n_heads = shape.n_heads if role == "attn_q" else shape.n_kv_heads
        halves = values.reshape(n_heads, 2, shape.d_head // 2, *dims[1:])
        values = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(dims)
    return encode_floats(values, quant_type)
