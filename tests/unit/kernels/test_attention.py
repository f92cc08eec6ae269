"""Attention and its KV pages against the NumPy twin and against a plain softmax in double precision."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from sipd.kernels import reference
from tests.unit.kernels.kernel_calls import F32, ISAS, PAGE, U8, Table, assert_same_bits, bits

SHAPES = [(8, 4, 4), (8, 6, 2), (24, 4, 1), (64, 9, 3), (80, 2, 2), (128, 4, 2)]  # head_dim, heads, KV heads
PAGE_IDS = np.array([3, 0, 5, 1, 4, 2], np.int32)


class Cache:
    """The same keys and values in the kernels' pages and in the twin's."""

    def __init__(self, isa: str, head_dim: int, n_kv_heads: int, n_positions: int, *, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        self.k = generator.standard_normal((n_positions, n_kv_heads, head_dim), np.float32)
        self.v = generator.standard_normal((n_positions, n_kv_heads, head_dim), np.float32)
        n_bytes = 4 * n_kv_heads * head_dim * PAGE
        # what other sequences left behind: NaN everywhere
        self.arena: U8 = np.full((len(PAGE_IDS), n_bytes), 0xFF, np.uint8)
        nans = np.full((len(PAGE_IDS), n_kv_heads, head_dim, PAGE), np.nan, np.float16)
        self.twin = reference.LayerCache(nans.copy(), nans.swapaxes(2, 3).copy())
        for position in range(n_positions):
            page, slot = int(PAGE_IDS[position // PAGE]), position % PAGE
            Table(isa).store_kv(self.arena[page], slot, self.k[position], self.v[position])
            self.twin.store(page, slot, self.k[position], self.v[position])


def queries(n_rows: int, n_heads: int, head_dim: int) -> F32:
    return np.random.default_rng(n_rows).standard_normal((n_rows, n_heads, head_dim), np.float32) * np.float32(2)


def scale_of(head_dim: int) -> np.float32:
    return np.float32(1.0 / np.sqrt(head_dim))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("head_dim", "n_heads", "n_kv_heads"), SHAPES)
@pytest.mark.parametrize("last", [0, 1, 30, 31, 32, 33, 63, 64, 100, 170])
def test_attention_of_many_rows_equals_the_twin(
    isa: str, head_dim: int, n_heads: int, n_kv_heads: int, last: int
) -> None:
    cache = Cache(isa, head_dim, n_kv_heads, last + 1)
    positions = np.arange(max(0, last - 15), last + 1, dtype=np.int32)
    q = queries(len(positions), n_heads, head_dim)
    scale = scale_of(head_dim)
    found = Table(isa).attention(q, positions, cache.arena, PAGE_IDS, n_kv_heads, float(scale))
    assert_same_bits(found, reference.attention(q, positions, cache.twin, PAGE_IDS, scale))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("head_dim", "n_heads", "n_kv_heads"), SHAPES)
def test_a_row_alone_and_a_head_alone_give_the_same_bits(
    isa: str, head_dim: int, n_heads: int, n_kv_heads: int
) -> None:
    cache = Cache(isa, head_dim, n_kv_heads, 80)
    positions = np.arange(60, 76, dtype=np.int32)
    q = queries(16, n_heads, head_dim)
    scale = float(scale_of(head_dim))
    together = Table(isa).attention(q, positions, cache.arena, PAGE_IDS, n_kv_heads, scale)
    for row in (0, 3, 4, 15):
        alone = Table(isa).attention(
            q[row : row + 1].copy(), positions[row : row + 1].copy(), cache.arena, PAGE_IDS, n_kv_heads, scale, 1
        )
        assert_same_bits(alone, together[row : row + 1])


@pytest.mark.parametrize("isa", ISAS)
def test_attention_is_close_to_a_softmax_in_double_precision(isa: str) -> None:
    cache = Cache(isa, 64, 3, 150)
    positions = np.array([0, 40, 149], np.int32)
    q = queries(3, 9, 64)
    found = Table(isa).attention(q, positions, cache.arena, PAGE_IDS, 3, 0.125)
    k, v = cache.k.astype(np.float16).astype(np.float64), cache.v.astype(np.float16).astype(np.float64)
    for row, position in enumerate(positions):
        for head in range(9):
            scores = k[: position + 1, head // 3] @ q[row, head].astype(np.float64) * 0.125
            weights = np.exp(scores - scores.max())
            np.testing.assert_allclose(
                found[row, head], weights @ v[: position + 1, head // 3] / weights.sum(), atol=2e-6
            )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("sharpness", [30.0, 1000.0])
def test_scores_far_apart_over_many_chunks_equal_the_twin(isa: str, sharpness: float) -> None:
    cache = Cache(isa, 64, 2, 180)
    positions = np.array([150, 170, 179], np.int32)
    q = queries(3, 4, 64) * np.float32(sharpness)
    found = Table(isa).attention(q, positions, cache.arena, PAGE_IDS, 2, 0.125)
    assert_same_bits(found, reference.attention(q, positions, cache.twin, PAGE_IDS, np.float32(0.125)))
    assert np.isfinite(found).all()


@pytest.mark.parametrize("isa", ISAS)
def test_with_one_position_attention_returns_its_value_exactly(isa: str) -> None:
    cache = Cache(isa, 64, 1, 1)
    found = Table(isa).attention(queries(1, 2, 64), np.zeros(1, np.int32), cache.arena, PAGE_IDS, 1, 0.125)
    wanted = cache.v[0].astype(np.float16).astype(np.float32)
    assert_same_bits(found[0], np.repeat(wanted, 2, axis=0))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("head_dim", [8, 24, 80])
def test_store_kv_writes_its_slot_and_nothing_else(isa: str, head_dim: int) -> None:
    generator = np.random.default_rng(head_dim)
    layer = generator.integers(0, 256, 4 * 3 * head_dim * PAGE, np.uint8)
    before = layer.copy()
    k, v = generator.standard_normal((2, 3, head_dim), np.float32)
    Table(isa).store_kv(layer, 13, k, v)
    halves, old = layer.view("<u2"), before.view("<u2")
    keys, values = halves[: 3 * head_dim * PAGE].reshape(3, head_dim, PAGE), halves[3 * head_dim * PAGE :]
    values = values.reshape(3, PAGE, head_dim)
    np.testing.assert_array_equal(keys[:, :, 13], k.astype(np.float16).view(np.uint16))
    np.testing.assert_array_equal(values[:, 13], v.astype(np.float16).view(np.uint16))
    assert np.count_nonzero(halves != old) <= 2 * 3 * head_dim


def halves_of(isa: str, values: F32) -> NDArray[np.uint16]:
    """The kernels' binary16 of each value, by way of store_kv."""
    n = len(values)
    layer = np.zeros(4 * n * PAGE, np.uint8)
    Table(isa).store_kv(layer, 0, values.reshape(1, n), values.reshape(1, n))
    keys = layer.view("<u2")[: n * PAGE].reshape(n, PAGE)[:, 0]
    np.testing.assert_array_equal(keys, layer.view("<u2")[n * PAGE :][:n])
    return keys.copy()


@pytest.mark.parametrize("isa", ISAS)
def test_every_binary16_number_survives_the_way_to_f32_and_back(isa: str) -> None:
    every = np.arange(65536, dtype=np.uint16)
    with np.errstate(invalid="ignore"):  # signalling NaNs are among them
        numbers = every.view(np.float16).astype(np.float32)
    is_nan = np.isnan(numbers)
    found = halves_of(isa, numbers)
    np.testing.assert_array_equal(found[~is_nan], every[~is_nan])
    assert (found[is_nan] & 0x7FFF > 0x7C00).all()


@pytest.mark.parametrize("isa", ISAS)
def test_floats_round_to_the_nearest_binary16_number_ties_to_even(isa: str) -> None:
    positive = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    middles = ((positive[1:] + positive[:-1]) / 2).astype(np.float32)  # exact: ties, subnormal ones included
    edges = np.array([65504, 65519.996, 65520, 1e6, np.inf, 2.0**-24, 2.0**-25, 1e-45, 6.1e-5], np.float32)
    noise = np.random.default_rng(0).integers(0, 0x7F800000, 20000, np.uint32).view(np.float32)
    values = np.concatenate([middles, np.nextafter(middles, 0), np.nextafter(middles, np.inf), edges, noise])
    values = np.concatenate([values, -values]).astype(np.float32)
    with np.errstate(over="ignore"):
        wanted = values.astype(np.float16).view(np.uint16)
    np.testing.assert_array_equal(halves_of(isa, values), wanted)


@pytest.mark.parametrize("isa", ISAS)
def test_every_binary16_value_is_widened_exactly_by_attention(isa: str) -> None:
    """One position: the output is the value itself; head_dim 256 at a time, and 248 for the path with padding."""
    every = np.arange(65536, dtype=np.uint16)
    finite = every[np.isfinite(every.view(np.float16))]
    for head_dim in (256, 248):
        padded = np.resize(finite, (-(-len(finite) // head_dim), head_dim))
        n_heads = len(padded)
        arena = np.zeros((1, 4 * n_heads * head_dim * PAGE), np.uint8)
        values = arena[0].view("<u2")[n_heads * head_dim * PAGE :].reshape(n_heads, PAGE, head_dim)
        values[:, 0] = padded
        q = np.zeros((1, n_heads, head_dim), np.float32)
        first = np.zeros(1, np.int32)
        found = Table(isa).attention(q, first, arena, first, n_heads, 1.0)
        # 0 * factor + v and the final product with 1 / 1 keep v, but for the sign of zero
        wanted = padded.view(np.float16).astype(np.float32) + np.float32(0)
        np.testing.assert_array_equal(bits(found[0]), bits(wanted))
