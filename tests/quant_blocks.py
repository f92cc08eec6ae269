"""Valid random blocks of every quant type, for models that tests build.

Invariant: the dequantised weights have zero mean and about the wanted standard deviation, so activations stay sane.
Source: the block layouts of ggml-common.h.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sipd.weights.tensor_table import QuantType

Bytes = NDArray[np.uint8]

# Standard deviation of a weight in units of the block scale, for the random quants drawn below.
_SPREAD = {
    QuantType.Q8_0: 73.3,
    QuantType.Q4_0: 4.61,
    QuantType.Q4_1: 4.61,
    QuantType.Q5_0: 9.23,
    QuantType.Q5_1: 9.23,
    QuantType.Q4_K: 256.7,
    QuantType.Q5_K: 523.6,
    QuantType.Q6_K: 683.0,
}
# Mean of the unsigned quants: the block minimum takes it off again.
_MIDDLE = {QuantType.Q4_1: 7.5, QuantType.Q5_1: 15.5, QuantType.Q4_K: 7.5, QuantType.Q5_K: 15.5}
_PAYLOAD_BYTES = {
    QuantType.Q4_0: 16,
    QuantType.Q4_1: 16,
    QuantType.Q5_0: 20,
    QuantType.Q5_1: 20,
    QuantType.Q4_K: 140,
    QuantType.Q5_K: 172,
}
_SIGNED_SCALE = {QuantType.Q4_0, QuantType.Q5_0, QuantType.Q6_K}  # types whose writers produce negative scales


def encode_floats(values: NDArray[np.float32], quant_type: QuantType) -> bytes:
    """Returns `values` as little-endian F32, F16 or BF16 (rounded to nearest even)."""
    if quant_type is QuantType.F32:
        return values.astype("<f4").tobytes()
    if quant_type is QuantType.F16:
        return values.astype("<f2").tobytes()
    if quant_type is QuantType.BF16:
        bits = values.astype("<f4").view("<u4").astype(np.uint64)
        rounded = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
        return rounded.astype("<u2").tobytes()
    raise ValueError(f"{quant_type.name} is no float type")


def random_blocks(generator: np.random.Generator, quant_type: QuantType, shape: tuple[int, ...], std: float) -> bytes:
    """Returns random weights of a row-major `shape` with about the standard deviation `std`, as they lie on disk."""
    if shape[-1] % quant_type.block_size:
        raise ValueError(f"rows of {shape[-1]} elements, {quant_type.name} wants a multiple of {quant_type.block_size}")
    n_elements = math.prod(shape)
    if quant_type.block_size == 1:
        return encode_floats(generator.standard_normal(n_elements, np.float32) * np.float32(std), quant_type)
    n_blocks = n_elements // quant_type.block_size
    scale = std / _SPREAD[quant_type] * generator.uniform(0.75, 1.25, n_blocks)
    if quant_type in _SIGNED_SCALE:
        scale = scale * generator.choice((-1.0, 1.0), n_blocks)
    parts = [_half(scale)]
    if quant_type is QuantType.Q8_0:
        parts.append(_int8(generator, n_blocks, 32, -127, 128))
    elif quant_type is QuantType.Q6_K:
        quants = generator.integers(0, 256, (n_blocks, 192), np.uint8)
        parts = [quants, _int8(generator, n_blocks, 16, -64, 64), *parts]
    else:
        if quant_type in _MIDDLE:
            minimum = scale * _MIDDLE[quant_type]
            # K-quants subtract their minimum, the legacy types add it.
            parts.append(_half(minimum if quant_type.block_size == 256 else -minimum))
        parts.append(generator.integers(0, 256, (n_blocks, _PAYLOAD_BYTES[quant_type]), np.uint8))
    blocks = np.concatenate(parts, axis=1)
    assert blocks.shape == (n_blocks, quant_type.block_bytes)
    return blocks.tobytes()


def _half(values: NDArray[np.float64]) -> Bytes:
    """Returns one f16 per block as two bytes each, (n_blocks, 2)."""
    return values.astype("<f2").view(np.uint8).reshape(-1, 2)


def _int8(generator: np.random.Generator, n_blocks: int, n_columns: int, low: int, high: int) -> Bytes:
    """Returns signed bytes in [low, high), (n_blocks, n_columns)."""
    return generator.integers(low, high, (n_blocks, n_columns), np.int8).view(np.uint8)
