"""The fixed exp against the true one, and what the contract says of it."""

from __future__ import annotations

import numpy as np

from sipd.kernels import reference


def test_exp_of_zero_is_exactly_one() -> None:
    assert reference.exp(np.array([0.0, -0.0], np.float32)).tolist() == [1.0, 1.0]


def test_exp_is_within_two_units_in_the_last_place() -> None:
    x = np.linspace(-86.9, 87.9, 200_001, dtype=np.float32)
    wanted = np.exp(x.astype(np.float64))
    assert (np.abs(reference.exp(x) - wanted) / wanted).max() < 2.0**-22


def test_exp_beyond_its_range_is_clamped() -> None:
    x = np.array([-np.inf, -1e30, -87.0, 88.0, 1e30, np.inf], np.float32)
    found = reference.exp(x)
    assert found[0] == found[1] == found[2] > 0
    assert found[3] == found[4] == found[5] < np.inf


def test_rope_angles_are_the_true_cosines_and_sines() -> None:
    positions = np.array([0, 1, 2, 300, 5000, 131071], np.int32)
    frequencies = (500000.0 ** (-np.arange(64) / 64)).astype(np.float32)
    found = reference.rope_angles(positions, frequencies)
    angles = (positions.astype(np.float32)[:, None] * frequencies).astype(np.float64)
    np.testing.assert_array_equal(found[:, :64], np.cos(angles).astype(np.float32))
    np.testing.assert_array_equal(found[:, 64:], np.sin(angles).astype(np.float32))
