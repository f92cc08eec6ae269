"""Rotary frequencies against computations of their own, and descriptions that are refused."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from sipd.errors import UnsupportedModel
from sipd.models import rope
from tests.builders import ModelShape
from tests.checkpoints import gguf_table, hf_table, program_of

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def llama3_by_numpy(theta: float, n_rot: int, scaling: dict[str, object]) -> np.ndarray:
    """The rule of Llama 3.1 over whole arrays, in double precision."""
    frequencies = theta ** (-np.arange(0, n_rot, 2, dtype=np.float64) / n_rot)
    original, factor = float(str(scaling["original_max_position_embeddings"])), float(str(scaling["factor"]))
    low, high = float(str(scaling["low_freq_factor"])), float(str(scaling["high_freq_factor"]))
    turns = original * frequencies / (2 * np.pi)  # full turns over the original context
    weight = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return weight * frequencies + (1 - weight) * frequencies / factor


@pytest.mark.parametrize("theta", [10000.0, 100000.0, 500000.0, 1e6])
@pytest.mark.parametrize("n_rot", [2, 48, 64, 128])
def test_frequencies_are_powers_of_the_base(theta: float, n_rot: int) -> None:
    found = np.array(rope.inverse_frequencies(theta, n_rot))
    wanted = theta ** (-np.arange(0, n_rot, 2, dtype=np.float64) / n_rot)
    np.testing.assert_array_max_ulp(found.astype(np.float32), wanted.astype(np.float32), maxulp=1)
    assert found[0] == 1.0


def test_frequencies_are_binary32_numbers() -> None:
    found = rope.inverse_frequencies(10000.0, 64)
    assert [float(np.float32(value)) for value in found] == found


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_scaling_is_the_published_rule(theta: float, factor: float) -> None:
    scaling = LLAMA3 | {"factor": factor}
    found = rope.apply_scaling(rope.inverse_frequencies(theta, 128), scaling, "here")
    np.testing.assert_allclose(found, llama3_by_numpy(theta, 128, scaling), rtol=3e-7)


def test_llama3_keeps_short_waves_and_divides_long_ones() -> None:
    plain = rope.inverse_frequencies(500000.0, 128)
    scaled = rope.apply_scaling(plain, LLAMA3, "here")
    assert scaled[0] == plain[0]
    assert scaled[-1] == rope.to_f32(plain[-1] / 8)
    assert any(a / 8 < b < a for a, b in zip(plain, scaled, strict=True))


@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_the_kind_is_found_under_both_keys(key: str) -> None:
    scaling = {name: value for name, value in LLAMA3.items() if name != "rope_type"} | {key: "llama3"}
    config = {"rope_scaling": scaling, "rope_theta": 500000.0}
    h = program_of(hf_table(replace(ModelShape(), head_dim=64), config=config)).hyperparameters
    np.testing.assert_allclose(h.inverse_frequencies, llama3_by_numpy(500000.0, 64, LLAMA3), rtol=3e-7)


@pytest.mark.parametrize("kind", ["yarn", "dynamic", "longrope", "su", "mrope", 3, None, ["llama3"]])
def test_an_unknown_kind_of_scaling_is_refused_by_name(kind: object) -> None:
    with pytest.raises(UnsupportedModel, match=r"rope scaling .* is not supported; wanted none, linear or llama3"):
        rope.apply_scaling([1.0], {"rope_type": kind, "factor": 2.0}, "here")


@pytest.mark.parametrize("kind", ["default", "none"])
def test_no_scaling_changes_nothing(kind: str) -> None:
    assert rope.apply_scaling([1.0, 0.5], {"type": kind}, "here") == [1.0, 0.5]


def test_linear_scaling_divides_every_frequency() -> None:
    assert rope.apply_scaling([1.0, 0.5], {"type": "linear", "factor": 4}, "here") == [0.25, 0.125]


@pytest.mark.parametrize("key", ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, "8", True, None, pytest.param(10**400, id="10^400")])
def test_a_llama3_number_that_makes_no_sense_is_refused_by_its_key(key: str, value: object) -> None:
    with pytest.raises(UnsupportedModel, match=rf"here: rope_scaling\.{key} is .*wanted a positive number"):
        rope.apply_scaling([1.0], LLAMA3 | {key: value}, "here")


@pytest.mark.parametrize("high", [1.0, 0.5])
def test_llama3_bounds_in_the_wrong_order_are_refused(high: float) -> None:
    with pytest.raises(UnsupportedModel, match="must exceed low_freq_factor"):
        rope.apply_scaling([1.0], LLAMA3 | {"high_freq_factor": high}, "here")


def test_the_factors_of_a_gguf_divide_its_frequencies() -> None:
    factors = [1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 8.0, 8.0]
    plain = program_of(gguf_table()).hyperparameters.inverse_frequencies
    table = gguf_table(extra={"rope_freqs.weight": (8,)})
    scaled = program_of(table, factors).hyperparameters.inverse_frequencies
    assert scaled == tuple(rope.to_f32(a / b) for a, b in zip(plain, factors, strict=True))


@pytest.mark.parametrize("factor", [0.0, -1.0, math.nan, math.inf, 1e-45])
def test_a_factor_that_makes_no_sense_is_refused(factor: float) -> None:
    table = gguf_table(extra={"rope_freqs.weight": (8,)})
    with pytest.raises(UnsupportedModel, match=r"rope_freqs\.weight"):
        program_of(table, [factor] * 8)


@pytest.mark.parametrize("theta", [1e-300, 5e-324])
def test_a_base_whose_powers_leave_binary32_is_refused(theta: float) -> None:
    with pytest.raises(UnsupportedModel, match="rope"):
        program_of(hf_table(config={"rope_theta": theta}))
