"""Row operations against the NumPy twin, bit by bit, on every instruction set of this machine."""

from __future__ import annotations

import numpy as np
import pytest

from sipd.kernels import reference, reference_quants
from tests.unit.kernels.kernel_calls import ISAS, LIBRARY, Table, activations, assert_same_bits

pytestmark = pytest.mark.parametrize("isa", ISAS)


@pytest.mark.parametrize("n", [32, 64, 96, 288, 576, 1536])
def test_quantised_rows_equal_the_twin(isa: str, n: int) -> None:
    x = activations(np.random.default_rng(n), 9, n)
    found, wanted = Table(isa).quantize(x), reference_quants.quantize(x)
    np.testing.assert_array_equal(found["q"], wanted.quants)
    assert_same_bits(found["d"], wanted.d)
    assert_same_bits(found["s"], wanted.s)
    sums = wanted.quants.astype(np.int64).sum(axis=2)
    np.testing.assert_array_equal(found["nsum8"], -8 * sums)
    np.testing.assert_array_equal(found["nsum8_lo"], -8 * wanted.quants[:, :, :16].astype(np.int64).sum(axis=2))


def test_quantised_halves_round_to_even(isa: str) -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, :8] = [127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 3.5]
    found = Table(isa).quantize(x)["q"][0, 0, :8]
    np.testing.assert_array_equal(found, [127, 0, 2, 2, 0, -2, -2, 4])


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_reaches_the_scale_of_its_block(isa: str, bad: float) -> None:
    for place in range(32):
        x = np.ones((1, 64), np.float32)
        x[0, place] = bad
        d = Table(isa).quantize(x)["d"][0]
        assert not np.isfinite(d[0])
        assert np.isfinite(d[1])


@pytest.mark.parametrize("largest", [1e-45, 1e-39, 3e-37, 7.6e-37, 1e-30, 3e38])
def test_blocks_at_the_ends_of_the_range_quantise_as_the_twin_does(isa: str, largest: float) -> None:
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 64) * np.float32(largest)
    found, wanted = Table(isa).quantize(x), reference_quants.quantize(x)
    np.testing.assert_array_equal(found["q"], wanted.quants)
    assert_same_bits(found["d"], wanted.d)
    assert_same_bits(found["s"], wanted.s)


@pytest.mark.parametrize("n", [8, 16, 24, 64, 100, 576])
def test_rms_norm_equals_the_twin(isa: str, n: int) -> None:
    generator = np.random.default_rng(n)
    x, weight = activations(generator, 7, n), generator.standard_normal(n, np.float32)
    x[6] = 0
    assert_same_bits(Table(isa).rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize("n", [1, 5, 16, 31, 96, 4096])
def test_silu_equals_the_twin(isa: str, n: int) -> None:
    generator = np.random.default_rng(n)
    gate, up = generator.standard_normal(n, np.float32) * 8, generator.standard_normal(n, np.float32)
    gate[:1] = -200.0
    assert_same_bits(Table(isa).silu_mul(gate, up), reference.silu_mul(gate, up))


def test_silu_over_a_fine_grid_equals_the_twin(isa: str) -> None:
    x = np.concatenate([np.linspace(-90, 90, 100_003), np.linspace(-1e-3, 1e-3, 4001)]).astype(np.float32)
    assert_same_bits(Table(isa).silu_mul(x, np.ones_like(x)), reference.silu_mul(x, np.ones_like(x)))


@pytest.mark.parametrize("is_neox", [False, True])
@pytest.mark.parametrize(("head_dim", "n_rot"), [(8, 8), (24, 24), (64, 32), (80, 80), (128, 128)])
def test_rope_equals_the_twin(isa: str, head_dim: int, n_rot: int, *, is_neox: bool) -> None:
    generator = np.random.default_rng(head_dim)
    positions = np.array([0, 1, 31, 32, 511, 4097, 131071], np.int32)
    frequencies = (10000.0 ** (-np.arange(0, n_rot, 2) / n_rot)).astype(np.float32)
    cos_sin = np.empty((len(positions), n_rot), np.float32)
    for row, position in enumerate(positions):
        LIBRARY.sipd_rope_angles(int(position), frequencies.ctypes.data, n_rot // 2, cos_sin[row].ctypes.data)
    assert_same_bits(cos_sin, reference.rope_angles(positions, frequencies))
    v = generator.standard_normal((len(positions), 3, head_dim), np.float32)
    assert_same_bits(Table(isa).rope(v, cos_sin, is_neox=is_neox), reference.rope(v, cos_sin, is_neox=is_neox))
