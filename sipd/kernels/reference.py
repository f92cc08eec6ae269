"""The NumPy twin of every operation of a pass: the oracle of the C kernels, and the fallback where they are missing.

Invariant: bit-identical with the C kernels. All arrays are binary32, sums run in the order of contract.h, and nothing
goes through np.sum, a float BLAS or libm. Integer block products go through a BLAS, which is exact below 2^24.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sipd.kernels.reference_quants import F32, U8, QuantizedRows, Units, floats, unpack
from sipd.weights.tensor_table import QuantType

PAGE = 32  # positions of a KV page and of a chunk of attention, SIPD_PAGE
_MAGIC = np.float32(12582912.0)  # 1.5 * 2^23
_ONE = np.float32(1.0)
_EXP_COEFFICIENTS = tuple(
    np.float32(c)
    for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
)
_SIN_COEFFICIENTS = (
    1.58969099521155010221e-10,
    -2.50507602534068634195e-08,
    2.75573137070700676789e-06,
    -1.98412698298579493134e-04,
    8.33333333332248946124e-03,
    -1.66666666666666324348e-01,
)
_COS_COEFFICIENTS = (
    -1.13596475577881948265e-11,
    2.08757232129817482790e-09,
    -2.75573143513906633035e-07,
    2.48015872894767294178e-05,
    -1.38888888888741095749e-03,
    4.16666666666666019037e-02,
)
# Rows x outputs of one block product: BLAS keeps this size on the calling thread (others wait by spinning)
_BLOCK_SUMS = 1 << 13
_FLOAT_SUMS = 1 << 16  # partial sums held at once by a float product: about a second-level cache


def tree16(partials: F32) -> F32:
    """The sum over a last axis of 16 (contract, point 5)."""
    p = partials
    for width in (8, 4, 2, 1):
        p = p[..., :width] + p[..., width : 2 * width]
    total: F32 = p[..., 0]
    return total


def exp(x: F32) -> F32:
    """The power of e by the polynomial of exp.h; x is clamped to [-87, 88]."""
    x = np.minimum(np.maximum(x, np.float32(-87.0)), np.float32(88.0))
    t = x * np.float32(1.44269504) + _MAGIC
    n = t - _MAGIC
    r = x - n * np.float32(0.693359375)
    r = r - n * np.float32(-2.12194440e-4)
    p = np.full_like(r, _EXP_COEFFICIENTS[0])
    for coefficient in _EXP_COEFFICIENTS[1:]:
        p = p * r + coefficient
    y = p * (r * r)
    y = y + r
    y = y + _ONE
    bits = (t.view(np.int32) - np.int32(0x4B400000) + np.int32(127)) << np.int32(23)
    power: F32 = y * bits.view(np.float32)
    return power


def rms_norm(x: F32, weight: F32, eps: float) -> F32:
    """Returns x / rms(x) * weight of rows (rows, n) (contract, point 6)."""
    n = x.shape[1]
    padded = _pad16(x)
    partials = np.zeros((x.shape[0], 16), np.float32)
    for i in range(0, padded.shape[1], 16):
        v = padded[:, i : i + 16]
        partials = partials + v * v
    inverse = _ONE / np.sqrt(tree16(partials) / np.float32(n) + np.float32(eps))
    out: F32 = (x * inverse[:, None]) * weight
    return out


def silu_mul(gate: F32, up: F32) -> F32:
    """Returns gate * sigmoid(gate) * up."""
    return (gate / (exp(-gate) + _ONE)) * up


def rope_angles(positions: NDArray[np.int32], inverse_frequencies: F32) -> F32:
    """(rows, 2n): cosines, then sines, of position x frequency, by f64 polynomials."""
    a = (positions.astype(np.float32)[:, None] * inverse_frequencies).astype(np.float64)
    magic = 6755399441055744.0  # 1.5 * 2^52
    turns = (a * 6.36619772367581382433e-01 + magic) - magic
    r = a - turns * 1.57079632673412561417e00
    r = r - turns * 6.07710050630396597660e-11
    r = r - turns * 2.02226624879595063154e-21
    z = r * r
    sine, cosine = np.full_like(z, _SIN_COEFFICIENTS[0]), np.full_like(z, _COS_COEFFICIENTS[0])
    for s, c in zip(_SIN_COEFFICIENTS[1:], _COS_COEFFICIENTS[1:], strict=True):
        sine, cosine = sine * z + s, cosine * z + c
    sine = r + r * z * sine
    cosine = (1.0 - 0.5 * z) + z * z * cosine
    quadrant = turns.astype(np.int64) & 3
    cos = np.choose(quadrant, [cosine, -sine, -cosine, sine])
    sin = np.choose(quadrant, [sine, cosine, -sine, -cosine])
    return np.concatenate([cos, sin], axis=1).astype(np.float32)


def rope(v: F32, cos_sin: F32, *, is_neox: bool) -> F32:
    """Heads (rows, heads, head_dim) rotated; dimensions past the rotary ones stay."""
    half = cos_sin.shape[1] // 2
    c, s = cos_sin[:, None, :half], cos_sin[:, None, half:]
    step = 1 if is_neox else 2
    first = slice(0, step * half, step)
    second = slice(half, 2 * half) if is_neox else slice(1, 2 * half, 2)
    a, b = v[:, :, first], v[:, :, second]
    out = v.copy()
    out[:, :, first] = a * c - b * s
    out[:, :, second] = a * s + b * c
    return out


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Keys (pages, kv_heads, head_dim, PAGE) and values (pages, kv_heads, PAGE, head_dim) of one block, binary16."""

    keys: NDArray[np.float16]
    values: NDArray[np.float16]

    def store(self, page: int, slot: int, k: F32, v: F32) -> None:
        """Keys and values (kv_heads, head_dim) of one position."""
        with np.errstate(over="ignore", invalid="ignore"):
            self.keys[page, :, :, slot] = k.astype(np.float16)
            self.values[page, :, slot, :] = v.astype(np.float16)


def attention(
    q: F32, positions: NDArray[np.int32], cache: LayerCache, pages: NDArray[np.int32], scale: np.float32
) -> F32:
    """Queries (rows, heads, head_dim) of one sequence over its KV pages (contract, point 7)."""
    n_rows, n_heads, head_dim = q.shape
    n_kv_heads = cache.keys.shape[1]
    grouped = q.reshape(n_rows, n_kv_heads, n_heads // n_kv_heads, head_dim)
    maximum: F32 = np.full(grouped.shape[:3], -3.0e38, np.float32)
    total: F32 = np.zeros_like(maximum)
    acc: F32 = np.zeros_like(grouped)
    for chunk in range(int(positions.max()) // PAGE + 1):
        rows = np.nonzero(positions >= chunk * PAGE)[0]
        page = pages[chunk]
        n_valid = np.minimum(positions[rows] + 1 - chunk * PAGE, PAGE)
        is_valid = (np.arange(PAGE) < n_valid[:, None])[:, None, None, :]
        with np.errstate(all="ignore"):  # slots past the row's position hold whatever was there
            scores = _scores(grouped[rows], cache.keys[page].astype(np.float32), scale)
            top = np.where(is_valid, scores, np.float32(-np.inf)).max(axis=3)
            highest = np.maximum(top, maximum[rows])
            weights = np.where(is_valid, exp(scores - highest[..., None]), np.float32(0.0))
        factor = exp(maximum[rows] - highest)
        total[rows] = total[rows] * factor + tree16(weights[..., :16] + weights[..., 16:])
        maximum[rows] = highest
        values = cache.values[page].astype(np.float32)
        a = acc[rows] * factor[..., None]
        for t in range(int(n_valid.max())):
            with np.errstate(all="ignore"):
                more = a + values[None, :, None, t, :] * weights[..., t, None]
            a = np.where(is_valid[..., t, None], more, a)
        acc[rows] = a
    out: F32 = acc * (_ONE / total)[..., None]
    return out.reshape(q.shape)


def _scores(q: F32, keys: F32, scale: np.float32) -> F32:
    """(rows, kv_heads, group, PAGE): sums over the head dimension in ascending order, times the scale."""
    acc: F32 = np.zeros_like(q, shape=(*q.shape[:3], PAGE))
    for d in range(q.shape[3]):
        acc += q[..., d, None] * keys[None, :, None, d, :]
    acc *= scale
    return acc


def matmul_blocks(quant_type: QuantType, weights: U8, x: QuantizedRows) -> F32:
    """(rows, n_out): block-quantised weights (n_out, row_bytes) times quantised rows (contract, point 3)."""
    out = np.zeros((x.quants.shape[0], weights.shape[0]), np.float32)
    step = max(16, _BLOCK_SUMS // max(1, out.shape[0]))
    for begin in range(0, out.shape[1], step):
        _add_blocks(unpack(quant_type, weights[begin : begin + step]), x, out[:, begin : begin + step])
    return out


def _add_blocks(units: Units, x: QuantizedRows, acc: F32) -> None:
    """Adds the products of all blocks to `acc` (rows, n_out), block after block."""
    term, other = np.empty((2, *acc.shape), np.float32)
    n_halves = units.scale.shape[2]
    width = 32 // n_halves
    for u in range(units.quants.shape[1]):
        w, xq = units.quants[:, u].astype(np.float32), x.quants[:, u].astype(np.float32)
        for half in range(n_halves):
            part = slice(half * width, (half + 1) * width)
            np.matmul(xq[:, part], w[:, part].T, out=term)
            np.multiply(units.scale[None, :, u, half], x.d[:, u, None], out=other)
            np.multiply(term, other, out=term)
            if units.minimum is not None:
                np.multiply(units.minimum[None, :, u], x.s[:, u, None], out=other)
                np.add(term, other, out=term)
            np.add(acc, term, out=acc)


def matmul_floats(quant_type: QuantType, weights: U8, x: F32) -> F32:
    """(rows, n_out): F32, F16 or BF16 weights (n_out, row_bytes) times f32 rows (contract, point 4)."""
    w = _pad16(floats(quant_type, weights))
    x = _pad16(x)
    out = np.empty((x.shape[0], w.shape[0]), np.float32)
    step = max(1, _FLOAT_SUMS // (16 * w.shape[0]))
    for begin in range(0, x.shape[0], step):
        rows = x[begin : begin + step]
        acc = np.zeros((rows.shape[0], w.shape[0], 16), np.float32)
        term = np.empty_like(acc)
        for k in range(0, w.shape[1], 16):
            np.multiply(w[None, :, k : k + 16], rows[:, None, k : k + 16], out=term)
            np.add(acc, term, out=acc)
        out[begin : begin + step] = tree16(acc)
    return out


def _pad16(x: F32) -> F32:
    """Zeros up to a multiple of 16 columns: they change no partial sum."""
    return np.pad(x, ((0, 0), (0, -x.shape[1] % 16))) if x.shape[1] % 16 else x
