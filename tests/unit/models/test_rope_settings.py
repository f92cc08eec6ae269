"""Rotary base and scaling: where both file formats state them, and what they make of the frequencies and the context.

The frequencies wanted follow from the base alone: frequency 1 of a head of 16 is base ** (-1 / 8).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from sipd.errors import UnsupportedModel
from sipd.models.hyperparameters import Hyperparameters
from tests.builders import ModelShape
from tests.checkpoints import gguf_table, hf_table, program_of

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


def _gguf(*, arch: str = "llama", **keys: object) -> Hyperparameters:
    metadata = {f"{arch}.rope.{key.replace('__', '.')}": value for key, value in keys.items()}
    return program_of(gguf_table(replace(ModelShape(), arch=arch), metadata=metadata)).hyperparameters


def _hf(**config: object) -> Hyperparameters:
    return program_of(hf_table(config=config)).hyperparameters


PLAIN = _gguf().inverse_frequencies
QUARTER = tuple(frequency / 4 for frequency in PLAIN)


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ({"scaling__type": "linear", "scaling__factor": 4.0}, QUARTER),
        ({"scaling__factor": 4.0}, QUARTER),
        ({"scale_linear": 4.0}, QUARTER),
        ({"scaling__type": "linear", "scale_linear": 4.0}, QUARTER),
        ({"scaling__type": "linear", "scaling__factor": 4.0, "scale_linear": 2.0}, QUARTER),
        ({"scaling__type": "none", "scaling__factor": 4.0}, PLAIN),
        ({"scaling__type": "none", "scale_linear": 4.0}, PLAIN),
        ({"scaling__type": "linear"}, PLAIN),
        ({"scaling__type": "linear", "scaling__factor": 0.0}, PLAIN),
        ({"scaling__factor": 0.0}, PLAIN),
        ({"scale_linear": 0.0}, PLAIN),
        ({"scaling__factor": 0.0, "scale_linear": 4.0}, PLAIN),  # the older key stands in for a missing one only
        ({"scaling__attn_factor": 1.0}, PLAIN),
    ],
)
def test_a_factor_of_a_gguf_divides_unless_the_type_is_none(
    arch: str, keys: dict[str, object], wanted: tuple[float, ...]
) -> None:
    assert _gguf(arch=arch, **keys).inverse_frequencies == wanted


@pytest.mark.parametrize("value", [-4.0, float("nan"), float("inf"), "4", True])
def test_a_factor_of_a_gguf_that_makes_no_sense_is_refused(value: object) -> None:
    with pytest.raises(UnsupportedModel, match=r"rope_scaling\.factor is .*wanted a positive number"):
        _gguf(scaling__factor=value)


@pytest.mark.parametrize("kind", ["yarn", "longrope", "dynamic", 7])
def test_another_type_of_a_gguf_is_refused(kind: object) -> None:
    with pytest.raises(UnsupportedModel, match=f"rope scaling {kind!r} is not supported"):
        _gguf(scaling__type=kind, scaling__factor=4.0)


@pytest.mark.parametrize("value", [1.7, 0.0])
def test_a_factor_on_the_scores_is_refused(value: float) -> None:
    with pytest.raises(UnsupportedModel, match=rf"rope\.scaling\.attn_factor is {value}, which sipd does not compute"):
        _gguf(scaling__attn_factor=value)


def test_linear_scaling_makes_room_for_as_many_times_the_trained_positions() -> None:
    h = _gguf(scaling__factor=4.0)
    assert (h.context_length, h.longest_context) == (512, 2048)
    h = _hf(rope_scaling={"type": "linear", "factor": 2.5})
    assert (h.context_length, h.longest_context) == (512, 1280)


@pytest.mark.parametrize("scaling", [{"type": "default", "factor": 4.0}, {"type": "linear", "factor": 0.5}, LLAMA3])
def test_other_scaling_makes_room_for_no_more_than_the_trained_positions(scaling: dict[str, object]) -> None:
    h = _hf(rope_scaling=scaling)
    assert (h.context_length, h.longest_context) == (512, 512)


def test_the_room_that_scaling_makes_ends_with_the_window_and_with_what_is_a_sensible_count() -> None:
    mistral = {"architectures": ["MistralForCausalLM"], "sliding_window": 1000}
    assert _hf(rope_scaling={"type": "linear", "factor": 4.0}, **mistral).longest_context == 1000
    assert _hf(rope_scaling={"type": "linear", "factor": 1e30}).longest_context == 2**24


@pytest.mark.parametrize(
    ("config", "theta"),
    [
        ({"rope_theta": None}, 10000.0),
        ({"rope_theta": 5e5}, 5e5),
        ({"rope_theta": None, "rope_parameters": {"rope_theta": 5e5}}, 5e5),
        ({"rope_theta": 500.0, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, 1e6),
        ({"rope_theta": None, "rope_scaling": {"rope_type": "default", "rope_theta": 5e5}}, 5e5),
        ({"rope_theta": 20000.0, "rope_scaling": {"rope_type": "default", "rope_theta": 5e5}}, 5e5),
        ({"rope_theta": 5e5, "rope_scaling": {}}, 5e5),
        ({"rope_theta": 5e5, "rope_parameters": {}}, 5e5),
        ({"rope_theta": 5e5, "rope_scaling": {"factor": 4.0}}, 5e5),  # without a type it is no scaling
    ],
)
def test_the_base_inside_wins_over_the_one_beside(config: dict[str, object], theta: float) -> None:
    assert _hf(**config).inverse_frequencies[1] == pytest.approx(theta ** (-1 / 8), rel=1e-6)


@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_scaling_is_read_in_both_places_with_the_base_inside(place: str, key: str) -> None:
    inside = {key: "linear", "factor": 2.0, "rope_theta": 50000.0}
    frequencies = _hf(rope_theta=None, **{place: inside}).inverse_frequencies
    assert frequencies[0] == 0.5
    assert frequencies[1] == pytest.approx(50000.0 ** (-1 / 8) / 2, rel=1e-6)


def test_both_places_may_say_the_same() -> None:
    older = {"type": "linear", "factor": 4}
    newer = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    assert _hf(rope_theta=10000.0, rope_scaling=older, rope_parameters=newer).inverse_frequencies == QUARTER


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ({"type": "linear", "factor": 4.0}, {"rope_type": "default", "rope_theta": 10000.0}),
        ({"type": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 2.0}),
        ({"type": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}),
        ({"type": "default"}, {"rope_type": "yarn", "factor": 4.0}),
    ],
)
def test_places_that_disagree_are_refused(older: dict[str, object], newer: dict[str, object]) -> None:
    with pytest.raises(UnsupportedModel, match="rope_scaling and rope_parameters disagree"):
        _hf(rope_scaling=older, rope_parameters=newer)


@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("value", ["yes", 3, [1]])
def test_a_scaling_that_is_no_object_is_refused(place: str, value: object) -> None:
    with pytest.raises(UnsupportedModel, match=rf"{place} is .*wanted an object"):
        _hf(**{place: value})


def test_a_scaling_by_kind_of_layer_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="rope_parameters: full_attention is an object, wanted one scaling"):
        _hf(rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 5e5}})


def test_a_base_inside_that_makes_no_sense_is_refused_by_its_place() -> None:
    with pytest.raises(UnsupportedModel, match="rope_scaling: rope_theta is -1, wanted a positive number"):
        _hf(rope_scaling={"type": "default", "rope_theta": -1})


def test_a_trained_length_that_the_scaling_contradicts_is_refused() -> None:
    _hf(rope_scaling=LLAMA3, original_max_position_embeddings=128)
    with pytest.raises(UnsupportedModel, match="original_max_position_embeddings is 64"):
        _hf(rope_scaling=LLAMA3, original_max_position_embeddings=64)
