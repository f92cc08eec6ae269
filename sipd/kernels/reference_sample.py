"""The NumPy twin of sample.c: one token from one row of logits.

Invariant: the same token and log probabilities as the C sampler, bit by bit; sums are f64 in the order it takes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sipd.kernels.reference import exp
from sipd.kernels.reference_quants import F32

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_LN_2 = 0.69314718055994530942


@dataclass(frozen=True, slots=True)
class SampleOptions:
    """sipd_sampling: penalties and biases by token id; `n_top` -1 means no log probabilities."""

    temperature: float = 0.0
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    biases: tuple[tuple[int, float], ...] = ()
    output_counts: dict[int, int] = field(default_factory=dict)
    seed: int = 0
    position: int = 0
    n_top: int = -1


@dataclass(frozen=True, slots=True)
class Sample:
    """sipd_sample_out; `top` holds (id, log probability) in rank order."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def sample(logits: F32, options: SampleOptions) -> Sample | None:
    """Draws one token; `logits` are changed in place as the C sampler does. None when they are not finite."""
    _adjust(logits, options)
    if not np.isfinite(logits).all():
        return None
    best = int(np.argmax(logits))
    largest = logits[best]
    normalizer, top = np.float32(0.0), tuple[tuple[int, float], ...]()
    if options.n_top >= 0:
        normalizer, top = _log_probabilities(logits, largest, options.n_top)
    token_id = _draw(logits, largest, options) if options.temperature > 0.0 else best
    return Sample(token_id, float(logits[token_id] - normalizer), top)


def uniform(seed: int, position: int) -> float:
    """Uniform in [0, 1), a function of the seed and the output position alone."""
    return float(_mix((_mix((seed + _GOLDEN) & _MASK) + (position + 1) * _GOLDEN) & _MASK) >> 11) * 2.0**-53


def natural_log(x: float) -> float:
    """Natural logarithm of a positive normal f64, by the series of sample.c."""
    bits = int(np.float64(x).view(np.uint64))
    exponent = (bits >> 52) - 1023
    mantissa = float(np.uint64(bits & 0xFFFFFFFFFFFFF | 0x3FF0000000000000).view(np.float64))
    if mantissa > 1.4142135623730951:
        mantissa, exponent = mantissa * 0.5, exponent + 1
    t = (mantissa - 1.0) / (mantissa + 1.0)
    square, term, total = t * t, t, 0.0
    for k in range(1, 24, 2):
        total = total + term / k
        term = term * square
    return 2.0 * total + exponent * _LN_2


def _mix(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
    return z ^ z >> 31


def _adjust(logits: F32, o: SampleOptions) -> None:
    for token_id, bias in o.biases:
        logits[token_id] = logits[token_id] + np.float32(bias)
    repetition, presence = np.float32(o.repetition_penalty), np.float32(o.presence_penalty)
    frequency = np.float32(o.frequency_penalty)
    for token_id, count in o.output_counts.items():
        value = logits[token_id]
        if repetition != np.float32(1.0):
            value = value / repetition if value > 0 else value * repetition
        if count > 0:
            value = (value - presence) - np.float32(count) * frequency
        logits[token_id] = value


def _log_probabilities(
    logits: F32, largest: np.float32, n_top: int
) -> tuple[np.float32, tuple[tuple[int, float], ...]]:
    total = _running_sum(exp(logits - largest).astype(np.float64))[-1]
    normalizer = np.float32(float(largest) + natural_log(float(total)))
    ids = _ranked(logits)[:n_top]
    return normalizer, tuple((int(i), float(logits[i] - normalizer)) for i in ids)


def _ranked(logits: F32) -> NDArray[np.intp]:
    """Ids in descending logit, ties in ascending id."""
    return np.argsort(-logits, kind="stable")


def _running_sum(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.add.accumulate(values)  # one after another, unlike np.sum


def _draw(logits: F32, largest: np.float32, o: SampleOptions) -> int:
    n = logits.shape[0]
    with np.errstate(over="ignore"):
        weights = exp((logits - largest) / np.float32(o.temperature)).astype(np.float64)
    ids = np.arange(n)
    top_p = np.float32(o.top_p)
    if top_p < np.float32(1.0) or 0 < o.top_k < n:
        ids = _ranked(logits)
        total = _running_sum(weights)[-1]
        if o.top_k > 0:
            ids = ids[: o.top_k]
            total = _running_sum(weights[ids])[-1]
        if top_p < np.float32(1.0):
            reached = _running_sum(weights[ids])
            ids = ids[: int(np.searchsorted(reached, float(top_p) * total)) + 1]
    ids = ids[weights[ids] >= float(np.float32(o.min_p))]
    reached = _running_sum(weights[ids])
    target = uniform(o.seed, o.position) * reached[-1]
    return int(ids[min(int(np.searchsorted(reached, target, side="right")), len(ids) - 1)])
