"""Checkpoints that exist as tables only: metadata and tensors of any shape, without a file behind them.

Invariant: tensors lie one after another at multiples of 32, as a GGUF writer places them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from sipd.models.program import Program
from sipd.models.registry import build_program
from sipd.weights.tensor_table import Checkpoint, QuantType, Tensor
from tests.builders import ModelShape, _gguf_metadata, _hf_config, _hf_name

HEADER_BYTES = 32 * 37  # where the weights begin: no multiple of a block, as in real files
# The shape of SmolLM2-135M: 30 blocks, a tied embedding of 49152 tokens
SMOLLM2 = ModelShape(
    n_layers=30, d_model=576, n_heads=9, n_kv_heads=3, d_ff=1536, vocab_size=49152, context_length=8192,
    rope_theta=100000.0, is_tied=True,
)  # fmt: skip
SMOLLM2_TYPES = {"token_embd": QuantType.Q8_0}


def gguf_table(
    shape: ModelShape | None = None,
    *,
    quant: QuantType = QuantType.F32,
    quant_by_role: Mapping[str, QuantType] | None = None,
    metadata: Mapping[str, object] | None = None,
    without: Iterable[str] = (),
    extra: Mapping[str, tuple[int, ...]] | None = None,
) -> Checkpoint:
    """A GGUF model as its reader reports it; `metadata` overrides keys (None drops one), `extra` adds F32 tensors."""
    shape = shape or ModelShape()
    entries = _gguf_metadata(shape, None) | dict(metadata or {})
    tensors: dict[str, Tensor] = {}
    at = HEADER_BYTES
    for name, dims in [*((n, d) for n, d in shape.tensors() if n not in without), *(extra or {}).items()]:
        role = name.rsplit(".", 2)[-2] if "." in name else name
        quant_type = (quant_by_role or {}).get(role, quant) if len(dims) > 1 else QuantType.F32
        n_bytes = math.prod(dims) // quant_type.block_size * quant_type.block_bytes
        tensors[name] = Tensor(name, dims, quant_type, 0, at, n_bytes)
        at += -(-n_bytes // 32) * 32
    return _checkpoint("gguf", Path("tiny.gguf"), at, entries, tensors)


def hf_table(
    shape: ModelShape | None = None,
    *,
    dtype: QuantType = QuantType.F32,
    config: Mapping[str, object] | None = None,
    without: Iterable[str] = (),
    extra: Mapping[str, tuple[int, ...]] | None = None,
) -> Checkpoint:
    """A Hugging Face checkpoint as its reader reports it; `config` overrides keys of config.json (None drops one)."""
    shape = shape or ModelShape()
    entries = _hf_config(shape, dtype) | dict(config or {})
    tensors: dict[str, Tensor] = {}
    at = HEADER_BYTES
    own = [(_hf_name(name), dims) for name, dims in shape.tensors()]
    for name, dims in [*((n, d) for n, d in own if n not in without), *(extra or {}).items()]:
        n_bytes = math.prod(dims) * dtype.block_bytes
        tensors[name] = Tensor(name, dims, dtype, 0, at, n_bytes)
        at += n_bytes
    return _checkpoint("safetensors", Path("tiny-hf"), at, entries, tensors)


def program_of(checkpoint: Checkpoint, rope_factors: list[float] | None = None) -> Program:
    """The checked program; `rope_factors` stands for the numbers in rope_freqs.weight."""
    return build_program(checkpoint, lambda _tensor: rope_factors or [])


def _checkpoint(
    file_format: str, path: Path, size: int, entries: Mapping[str, object], tensors: Mapping[str, Tensor]
) -> Checkpoint:
    kept = {key: value for key, value in entries.items() if value is not None}
    return Checkpoint(path, file_format, (path,), (size,), kept, tensors)
