"""The sampler: its properties, and equality with the NumPy twin bit by bit."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sipd.kernels import binding
from sipd.kernels.reference_sample import Sample, SampleOptions, natural_log, sample, uniform
from tests.unit.kernels.kernel_calls import F32, LIBRARY, assert_same_bits


def draw(logits: F32, options: SampleOptions) -> Sample | None:
    """The C sampler with the twin's signature; changes `logits` likewise."""
    n = len(logits)
    assert logits.dtype == np.float32
    arguments = binding.Sampling(
        temperature=options.temperature, top_p=options.top_p, min_p=options.min_p, top_k=options.top_k,
        repetition_penalty=options.repetition_penalty, presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty, n_biases=len(options.biases),
        n_context=len(options.output_counts), n_top=options.n_top, seed=options.seed, position=options.position,
    )  # fmt: skip
    if options.biases:
        arguments.bias_ids = (ctypes.c_int32 * n)(*(token_id for token_id, _ in options.biases))
        arguments.biases = (ctypes.c_float * n)(*(bias for _, bias in options.biases))
    if options.output_counts:
        arguments.context_ids = (ctypes.c_int32 * n)(*options.output_counts)
        arguments.output_counts = (ctypes.c_int32 * n)(*options.output_counts.values())
    out = binding.SampleOut()
    status = LIBRARY.sipd_sample(
        logits.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), n, ctypes.byref(arguments),
        ctypes.create_string_buffer(8 * n), ctypes.byref(out),
    )  # fmt: skip
    if status:
        assert status == -1
        return None
    top = tuple((out.top_ids[i], out.top_logprobs[i]) for i in range(max(0, min(options.n_top, n))))
    return Sample(out.id, out.logprob, top)


def random_logits(n: int, seed: int = 0, spread: float = 3.0) -> F32:
    return np.random.default_rng(seed).standard_normal(n, np.float32) * np.float32(spread)


def drawn_id(logits: F32, options: SampleOptions) -> int:
    found = draw(logits.copy(), options)
    assert found is not None
    return found.token_id


sampling_options = st.builds(
    SampleOptions,
    temperature=st.sampled_from([0.0, 1e-12, 0.1, 0.8, 1.0, 2.5, 100.0]),
    top_p=st.sampled_from([1e-6, 0.1, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 1e-4, 0.05, 0.5, 1.0]),
    top_k=st.sampled_from([0, 1, 2, 7, 40, 100000]),
    repetition_penalty=st.sampled_from([1.0, 1.1, 0.5, 10.0]),
    presence_penalty=st.sampled_from([0.0, 0.6, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.3, 2.0]),
    biases=st.lists(st.tuples(st.integers(0, 49), st.floats(-100, 100, width=32)), max_size=4).map(tuple),
    output_counts=st.dictionaries(st.integers(0, 49), st.integers(0, 5), max_size=8),
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 10000),
    n_top=st.sampled_from([-1, 0, 1, 5, 20]),
)


@given(sampling_options, st.sampled_from([50, 257, 3000]), st.integers(0, 50), st.sampled_from([0.01, 1.0, 5.0, 40.0]))
@settings(max_examples=400, deadline=None, derandomize=True)
def test_a_draw_equals_that_of_the_twin(options: SampleOptions, n: int, seed: int, spread: float) -> None:
    logits = random_logits(n, seed, spread)
    mine, theirs = logits.copy(), logits.copy()
    found, wanted = draw(mine, options), sample(theirs, options)
    assert_same_bits(mine, theirs)
    assert found == wanted


@given(sampling_options, st.integers(0, 20))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_tied_logits_are_drawn_as_the_twin_draws_them(options: SampleOptions, seed: int) -> None:
    logits = np.round(random_logits(60, seed))
    assert draw(logits.copy(), options) == sample(logits.copy(), options)


@pytest.mark.parametrize(
    "options",
    [
        SampleOptions(),
        SampleOptions(temperature=1.0, top_k=1),
        SampleOptions(temperature=1.0, top_p=1e-9),
        SampleOptions(temperature=1.0, min_p=1.0),
        SampleOptions(temperature=1e-12),
    ],
    ids=["temperature-0", "top-k-1", "tiny-top-p", "min-p-1", "tiny-temperature"],
)
def test_the_ways_to_be_greedy_agree(options: SampleOptions) -> None:
    for seed in range(30):
        logits = random_logits(500, seed)
        assert drawn_id(logits, replace(options, seed=seed)) == int(np.argmax(logits))


def test_ties_go_to_the_lowest_id() -> None:
    logits = np.zeros(100, np.float32)
    logits[[17, 40, 99]] = 5
    assert drawn_id(logits, SampleOptions()) == 17
    assert drawn_id(logits, SampleOptions(temperature=1.0, top_k=1, seed=3)) == 17
    found = draw(logits.copy(), SampleOptions(n_top=4))
    assert found is not None
    assert [token_id for token_id, _ in found.top] == [17, 40, 99, 0]


def test_seed_and_position_alone_decide() -> None:
    logits = random_logits(1000, 1)
    options = SampleOptions(temperature=1.0, seed=11, position=4)
    assert len({drawn_id(logits, options) for _ in range(5)}) == 1
    assert len({drawn_id(logits, replace(options, position=p)) for p in range(20)}) > 5
    assert len({drawn_id(logits, replace(options, seed=s)) for s in range(20)}) > 5


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
def test_draws_follow_the_softmax(seed: int) -> None:
    logits = np.array([2.0, 1.0, 0.0, -1.0, -3.0, 1.5], np.float32)
    p = np.exp(logits.astype(np.float64))
    p /= p.sum()
    n = 20_000
    options = SampleOptions(temperature=1.0, seed=seed)
    counts = np.bincount([drawn_id(logits, replace(options, position=i)) for i in range(n)], minlength=6)
    chi_square = float(((counts - n * p) ** 2 / (n * p)).sum())
    assert chi_square < 20.5  # five degrees of freedom: one in a thousand is above; the draws are fixed


def test_draws_over_neighbouring_seeds_follow_the_softmax_too() -> None:
    logits = np.array([0.0, 0.0, 0.0, 0.0], np.float32)
    options = SampleOptions(temperature=1.0)
    counts = np.bincount([drawn_id(logits, replace(options, seed=seed)) for seed in range(8000)], minlength=4)
    assert ((counts - 2000) ** 2 / 2000).sum() < 16.3


def test_the_random_number_is_uniform() -> None:
    numbers = np.array([uniform(7, position) for position in range(20_000)])
    assert 0.0 <= numbers.min() < numbers.max() < 1.0
    assert abs(numbers.mean() - 0.5) < 0.01
    assert abs(numbers.var() - 1 / 12) < 0.002


def test_top_k_keeps_the_k_best() -> None:
    logits = random_logits(300, 5, 0.5)
    best = set(np.argsort(-logits)[:8].tolist())
    options = SampleOptions(temperature=5.0, top_k=8)
    assert {drawn_id(logits, replace(options, position=i)) for i in range(400)} == best


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.15, 0.1], np.float32))
    for top_p, wanted in ((0.4, {0}), (0.6, {0, 1}), (0.8, {0, 1, 2}), (0.95, {0, 1, 2, 3})):
        options = SampleOptions(temperature=1.0, top_p=top_p)
        assert {drawn_id(logits, replace(options, position=i)) for i in range(300)} == wanted


def test_min_p_is_relative_to_the_best() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    options = SampleOptions(temperature=1.0, min_p=0.2)
    assert {drawn_id(logits, replace(options, position=i)) for i in range(300)} == {0, 1, 2}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_refused(bad: float, temperature: float) -> None:
    for place in (0, 50, 99):
        logits = random_logits(100)
        logits[place] = bad
        assert draw(logits, SampleOptions(temperature=temperature)) is None
        assert sample(logits, SampleOptions(temperature=temperature)) is None


def test_log_probabilities_are_those_of_a_log_softmax() -> None:
    logits = random_logits(5000, 9)
    wanted = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    found = draw(logits.copy(), SampleOptions(temperature=0.7, seed=3, n_top=20))
    assert found is not None
    assert abs(found.logprob - wanted[found.token_id]) < 2e-6
    assert [token_id for token_id, _ in found.top] == np.argsort(-logits)[:20].tolist()
    np.testing.assert_allclose([p for _, p in found.top], wanted[np.argsort(-logits)[:20]], atol=2e-6)


def test_penalties_follow_their_formulas() -> None:
    logits = np.array([2.0, -2.0, 1.0, 1.0, 0.5], np.float32)
    options = SampleOptions(
        repetition_penalty=2.0, presence_penalty=0.25, frequency_penalty=0.5, biases=((4, 3.0),),
        output_counts={0: 0, 1: 1, 2: 3},
    )  # fmt: skip
    assert draw(logits, options) is not None
    np.testing.assert_array_equal(logits, [1.0, -4.75, -1.25, 1.0, 3.5])


def test_the_logarithm_is_exact_to_a_few_units() -> None:
    for x in (1.0, 1.0000001, 1.5, 2.0, 3.14159, 49152.0, 1e300, 1e-300):
        assert natural_log(x) == pytest.approx(np.log(x), rel=1e-15, abs=1e-15)
