"""Calls the C kernels' tables entry by entry on NumPy arrays, one instruction set at a time.

Invariant: weights lie in a buffer with the slack that the kernels may read past a tile, filled with noise.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sipd.kernels import binding
from sipd.kernels.operations import AttentionArguments, MatmulArguments, Operations
from sipd.weights.tensor_table import QuantType
from tests.quant_blocks import random_blocks

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]

LIBRARY = binding.load_library()
ISAS = binding.isa_names(LIBRARY)
BLOCK_TYPES = [t for t in QuantType if t.block_size > 1]
FLOAT_TYPES = [t for t in QuantType if t.block_size == 1]
PACKED_TYPES = BLOCK_TYPES  # every one has a packed form
PANEL = binding.PANEL_ROWS
PAGE = binding.PAGE_POSITIONS
Q8_DTYPE = np.dtype([("q", "i1", 32), ("d", "<f4"), ("s", "<f4"), ("nsum8", "<i4"), ("nsum8_lo", "<i4")])


def bits(values: F32) -> NDArray[np.uint32]:
    """The bit patterns: equality that tells +0 from -0 and knows NaN."""
    return np.ascontiguousarray(values, np.float32).view(np.uint32)


def assert_same_bits(found: F32, wanted: F32) -> None:
    np.testing.assert_array_equal(bits(found), bits(wanted))


def random_weights(generator: np.random.Generator, quant_type: QuantType, n_out: int, n_in: int) -> U8:
    """(n_out, row_bytes) of valid weights."""
    raw = random_blocks(generator, quant_type, (n_out, n_in), n_in**-0.5)
    return np.frombuffer(raw, np.uint8).reshape(n_out, -1).copy()


def activations(generator: np.random.Generator, n_rows: int, n_in: int) -> F32:
    """Rows with outliers, whole blocks of zeros, and scales far apart."""
    x = generator.standard_normal((n_rows, n_in), np.float32)
    x *= np.exp2(generator.integers(-6, 7, (n_rows, 1))).astype(np.float32)
    x[generator.random(x.shape) < 0.01] *= 40
    if n_in >= 64:
        x[::3, :32] = 0
    return x


@dataclass(frozen=True, slots=True)
class Table:
    """The operations of one instruction set."""

    isa: str

    @property
    def ops(self) -> Operations:
        pointer = LIBRARY.sipd_isa_ops(binding.isa_index(LIBRARY, self.isa))
        table: Operations = pointer.contents
        return table

    def quantize(self, x: F32) -> NDArray[np.void]:
        x = np.ascontiguousarray(x, np.float32)
        out = np.zeros((x.shape[0], x.shape[1] // 32), Q8_DTYPE)
        for row in range(x.shape[0]):
            self.ops.quantize(x[row].ctypes.data, x.shape[1], out[row].ctypes.data)
        return out

    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        out = np.empty_like(x)
        for row in range(x.shape[0]):
            self.ops.rms_norm(x[row].ctypes.data, weight.ctypes.data, x.shape[1], eps, out[row].ctypes.data)
        return out

    def silu_mul(self, gate: F32, up: F32) -> F32:
        out = np.empty_like(gate)
        self.ops.silu_mul(gate.ctypes.data, up.ctypes.data, gate.size, out.ctypes.data)
        return out

    def rope(self, v: F32, cos_sin: F32, *, is_neox: bool) -> F32:
        out = v.copy()
        for row in range(v.shape[0]):
            self.ops.rope(
                out[row].ctypes.data, v.shape[1], v.shape[2], cos_sin.shape[1], int(is_neox), cos_sin[row].ctypes.data
            )
        return out

    def store_kv(self, layer: U8, slot: int, k: F32, v: F32) -> None:
        k, v = np.ascontiguousarray(k), np.ascontiguousarray(v)
        self.ops.store_kv(k.ctypes.data, v.ctypes.data, k.shape[0], k.shape[1], slot, layer.ctypes.data)

    def attention(  # noqa: PLR0917 - the twin's order
        self, q: F32, positions: NDArray[np.int32], arena: U8, pages: NDArray[np.int32], n_kv_heads: int, scale: float,
        heads_per_item: int | None = None,
    ) -> F32:  # fmt: skip
        """Attention of all heads of q (rows, heads, head_dim), one item per KV head or finer."""
        n_rows, n_heads, head_dim = q.shape
        group = n_heads // n_kv_heads
        step = heads_per_item or group
        out = np.full_like(q, np.nan)
        scratch = scratch_buffer(2 * PAGE * 256 * 4 + n_rows * step * (272 * 4 + 8))
        for head0 in range(0, n_heads, step):
            arguments = AttentionArguments(
                q=q.ctypes.data, out=out.ctypes.data, q_stride=n_heads * head_dim, positions=positions.ctypes.data,
                n_rows=n_rows, head0=head0, n_heads=step, kv_head=head0 // group, n_kv_heads=n_kv_heads,
                head_dim=head_dim, scale=scale, arena=arena.ctypes.data, page_bytes=arena.strides[0], layer_offset=0,
                pages=pages.ctypes.data,
            )  # fmt: skip
            self.ops.attention(ctypes.byref(arguments), scratch.ctypes.data)
        return out

    def repack(self, quant_type: QuantType, weights: U8, n_in: int) -> U8:
        """The weights with every whole panel repacked."""
        out = weights.copy()
        scratch = scratch_buffer(PANEL * weights.shape[1])
        for row in range(0, weights.shape[0] // PANEL * PANEL, PANEL):
            self.ops.repack(quant_type.type_id, out[row:].ctypes.data, weights.shape[1], n_in, scratch.ctypes.data)
        return out

    def extract_row(self, quant_type: QuantType, packed: U8, n_in: int, row: int) -> U8:
        out = np.empty(packed.shape[1], np.uint8)
        panel = packed[row // PANEL * PANEL :]
        self.ops.extract_row(quant_type.type_id, panel.ctypes.data, packed.shape[1], n_in, row % PANEL, out.ctypes.data)
        return out

    def matmul(
        self, quant_type: QuantType, weights: U8, x: F32, *, packed: bool = False, bias: F32 | None = None,
        onto: F32 | None = None, cuts: tuple[int, ...] = (),
    ) -> F32:  # fmt: skip
        """(rows, n_out), computed panel run by panel run: `cuts` are the panels at which a new call begins."""
        n_out, n_in = weights.shape[0], x.shape[1]
        w = with_slack(self.repack(quant_type, weights, n_in) if packed else weights)
        n_units = -(-n_in // 32)
        # outputs stand in wider rows, so that a write out of bounds shows
        out = np.full((x.shape[0], n_out + 5), np.nan, np.float32)
        if onto is not None:
            out[:, :n_out] = onto
        x = np.ascontiguousarray(x)
        xq = self.quantize(x) if quant_type.block_size > 1 else np.zeros(0, Q8_DTYPE)
        arguments = MatmulArguments(
            type=quant_type.type_id, is_packed=int(packed), n_in=n_in, n_out=n_out, row_bytes=weights.shape[1],
            w=w.ctypes.data, xq=xq.ctypes.data, xf=x.ctypes.data, xf_stride=n_in, n_rows=x.shape[0],
            add=int(onto is not None), out=out.ctypes.data, out_stride=n_out + 5,
            bias=bias.ctypes.data if bias is not None else None,
        )  # fmt: skip
        scratch = scratch_buffer(n_units * 8 * 16 + 2 * max(256 << 10, n_units * 40 * 16) + 4096)
        n_panels = -(-n_out // PANEL)
        borders = [0, *cuts, n_panels]
        for begin, end in pairwise(borders):
            self.ops.matmul(ctypes.byref(arguments), begin, end, scratch.ctypes.data)
        assert np.isnan(out[:, n_out:]).all(), "outputs past the tile were written"
        return out[:, :n_out].copy()


def with_slack(weights: U8) -> U8:
    """The weights followed by the rows that a whole panel may read past them."""
    noise = np.random.default_rng(7).integers(0, 256, 16 * weights.shape[1] + 64, np.uint8)
    return np.concatenate([weights.reshape(-1), noise])


def scratch_buffer(n_bytes: int) -> U8:
    """Scratch that holds NaNs, as if another item had used it before; 64-byte aligned."""
    raw = np.full(n_bytes + 64, 0xFF, np.uint8)
    at = -raw.ctypes.data % 64
    return raw[at : at + n_bytes]
