"""The NumPy twin of dequantize.c, unpack.h and quantize.c: block formats as integers and scales.

Invariant: bit-identical with the C kernels; every float operation here is one binary32 operation of the contract.
Source: block layouts of the GGUF quant types as ggml defines them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sipd.weights.tensor_table import QuantType

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]
I8 = NDArray[np.int8]

FLOAT_TYPES = frozenset({QuantType.F32, QuantType.F16, QuantType.BF16})
_ROUND = np.float32(12582912.0)  # 1.5 * 2^23: adding it rounds to an integer, nearest even
_LEAST = np.float32(2.0**-120)  # below this 127 / max|x| would not be finite


@dataclass(frozen=True, slots=True)
class Units:
    """Rows of weights in units of 32: signed quants (rows, units, 32) and f32 scales.

    `scale` is (rows, units, 1), or (rows, units, 2) for the two halves of Q6_K; `minimum` is (rows, units) or None.
    """

    quants: I8
    scale: F32
    minimum: F32 | None


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """Activations: quants (rows, units, 32), their step d and d * sum(q), both (rows, units)."""

    quants: I8
    d: F32
    s: F32


def quantize(x: F32) -> QuantizedRows:
    """Rows of activations (rows, n) as blocks of 32 (contract, point 2)."""
    blocks = x.reshape(x.shape[0], x.shape[1] // 32, 32)
    largest = np.abs(blocks).max(axis=2)
    with np.errstate(all="ignore"):  # rows that are not finite stay so
        inverse = np.where(largest > _LEAST, np.float32(127.0) / largest, np.float32(0.0))
        quants = ((blocks * inverse[:, :, None] + _ROUND) - _ROUND).astype(np.int8)
        d = largest / np.float32(127.0)
        s = d * quants.sum(axis=2, dtype=np.int32).astype(np.float32)
    return QuantizedRows(quants, d, s)


def unpack(quant_type: QuantType, rows: U8) -> Units:
    """The units of block-quantised rows (n_rows, row_bytes), as the products use them."""
    quants = _QUANTS[quant_type](_blocks(quant_type, rows)).reshape(rows.shape[0], -1, 32)
    scale, minimum = _scales(quant_type, _blocks(quant_type, rows))
    if quant_type in (QuantType.Q4_K, QuantType.Q5_K) and minimum is not None:
        minimum = np.float32(0.0) - minimum
    return Units(quants, scale, minimum)


def dequantize(quant_type: QuantType, rows: U8) -> F32:
    """Rows (n_rows, row_bytes) of any type as f32, value by value as the format defines it."""
    if quant_type in FLOAT_TYPES:
        return floats(quant_type, rows)
    blocks = _blocks(quant_type, rows)
    scale, minimum = _scales(quant_type, blocks)
    quants = _QUANTS[quant_type](blocks).astype(np.float32)
    parts = quants.reshape(rows.shape[0], scale.shape[1], scale.shape[2], -1)
    values = scale[:, :, :, None] * parts
    if minimum is not None:
        subtracts = quant_type.block_size == 256
        part = minimum[:, :, None, None]
        values = values - part if subtracts else values + part
    return values.reshape(rows.shape[0], -1)


def floats(quant_type: QuantType, rows: U8) -> F32:
    """Rows of F32, F16 or BF16 as f32; exact."""
    flat = np.ascontiguousarray(rows)
    if quant_type is QuantType.F32:
        return flat.view("<f4")
    if quant_type is QuantType.F16:
        return flat.view("<f2").astype(np.float32)
    return (flat.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


def _blocks(quant_type: QuantType, rows: U8) -> U8:
    return rows.reshape(rows.shape[0], -1, quant_type.block_bytes)


def _half(blocks: U8, at: int) -> F32:
    """The f16 at byte `at` of each block, (rows, blocks)."""
    return np.ascontiguousarray(blocks[:, :, at : at + 2]).view("<f2")[:, :, 0].astype(np.float32)


def _nibbles(packed: U8) -> U8:
    """Low nibbles, then high nibbles, of the last axis."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _fifth_bits(packed: U8) -> U8:
    """Bit i of the four bytes becomes bit 4 of value i, (rows, blocks, 32)."""
    return np.unpackbits(np.ascontiguousarray(packed), axis=-1, bitorder="little") << np.uint8(4)


def _signed(quants: U8, offset: int) -> I8:
    return (quants - np.uint8(offset)).view(np.int8)


def _q4_0(blocks: U8) -> I8:
    return _signed(_nibbles(blocks[:, :, 2:]), 8)


def _q4_1(blocks: U8) -> I8:
    return _signed(_nibbles(blocks[:, :, 4:]), 0)


def _q5_0(blocks: U8) -> I8:
    return _signed(_nibbles(blocks[:, :, 6:]) | _fifth_bits(blocks[:, :, 2:6]), 16)


def _q5_1(blocks: U8) -> I8:
    return _signed(_nibbles(blocks[:, :, 8:]) | _fifth_bits(blocks[:, :, 4:8]), 0)


def _q8_0(blocks: U8) -> I8:
    return np.ascontiguousarray(blocks[:, :, 2:]).view(np.int8)


def _k_nibbles(packed: U8) -> U8:
    """128 bytes as 8 units of 32: each run of 32 bytes holds one unit in its low and one in its high nibbles."""
    return _nibbles(packed.reshape(*packed.shape[:2], 4, 32)).reshape(*packed.shape[:2], 8, 32)


def _q4_k(blocks: U8) -> I8:
    return _signed(_k_nibbles(blocks[:, :, 16:]), 0)


def _q5_k(blocks: U8) -> I8:
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    high = (blocks[:, :, None, 16:48] >> shifts & np.uint8(1)) << np.uint8(4)
    return _signed(_k_nibbles(blocks[:, :, 48:]) | high, 0)


def _q6_k(blocks: U8) -> I8:
    shape = blocks.shape[:2]
    # units n = 0, 1 (128 weights each) of four runs k: low bits of run k lie at 64 n + 32 (k & 1), nibble k >> 1
    low = _nibbles(blocks[:, :, :128].reshape(*shape, 2, 64)).reshape(*shape, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    high = (blocks[:, :, 128:192].reshape(*shape, 2, 1, 32) >> shifts & np.uint8(3)) << np.uint8(4)
    return _signed(low | high, 32)


_QUANTS = {
    QuantType.Q4_0: _q4_0,
    QuantType.Q4_1: _q4_1,
    QuantType.Q5_0: _q5_0,
    QuantType.Q5_1: _q5_1,
    QuantType.Q8_0: _q8_0,
    QuantType.Q4_K: _q4_k,
    QuantType.Q5_K: _q5_k,
    QuantType.Q6_K: _q6_k,
}


def _scales(quant_type: QuantType, blocks: U8) -> tuple[F32, F32 | None]:
    """Scales and minima of the units; the minima of K types as the format has them, to be subtracted."""
    n_rows = blocks.shape[0]
    if quant_type in (QuantType.Q4_K, QuantType.Q5_K):
        d, dmin = _half(blocks, 0)[:, :, None], _half(blocks, 2)[:, :, None]
        s = blocks[:, :, 4:16]
        scale = np.concatenate([s[:, :, :4] & 63, s[:, :, 8:] & 15 | s[:, :, :4] >> 6 << 4], axis=2)
        minimum = np.concatenate([s[:, :, 4:8] & 63, s[:, :, 8:] >> 4 | s[:, :, 4:8] >> 6 << 4], axis=2)
        return (
            (d * scale.astype(np.float32)).reshape(n_rows, -1, 1),
            (dmin * minimum.astype(np.float32)).reshape(n_rows, -1),
        )
    if quant_type is QuantType.Q6_K:
        steps = np.ascontiguousarray(blocks[:, :, 192:208]).view(np.int8).astype(np.float32)
        return (_half(blocks, 208)[:, :, None] * steps).reshape(n_rows, -1, 2), None
    has_minimum = quant_type in (QuantType.Q4_1, QuantType.Q5_1)
    return _half(blocks, 0)[:, :, None], _half(blocks, 2) if has_minimum else None
