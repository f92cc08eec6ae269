"""Sampling options of one request, checked once; the draw itself is kernels/sample.c."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sipd.errors import InvalidRequest

MAX_LOGPROBS = 20  # what OpenAI's API allows, and a bound on the size of one event
MAX_LOGIT_BIASES = 1024


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Effective sampling options. Order: bias, penalties, temperature, top-k, top-p, min-p, draw.

    temperature 0 is greedy. top_k 0 and top_p 1 and min_p 0 switch those filters off. `seed` and the output
    position alone decide the random number, so a request's text does not depend on who shares its passes.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    logprobs: int | None = None

    def check(self, vocab_size: int) -> None:
        """Raises InvalidRequest naming the first field that is out of range."""
        _range("sampling.temperature", self.temperature, 0.0, 100.0)
        if not 0 <= self.top_k <= 2**31 - 1:
            raise InvalidRequest("sampling.top_k", f"found {self.top_k}, wanted 0 (off) or a positive count")
        _range("sampling.top_p", self.top_p, 0.0, 1.0, open_low=True)
        _range("sampling.min_p", self.min_p, 0.0, 1.0)
        _range("sampling.repetition_penalty", self.repetition_penalty, 0.01, 10.0)
        _range("sampling.presence_penalty", self.presence_penalty, -2.0, 2.0)
        _range("sampling.frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if not 0 <= self.seed < 2**64:
            raise InvalidRequest("sampling.seed", f"found {self.seed}, wanted an unsigned 64-bit number")
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_LOGPROBS:
            raise InvalidRequest("sampling.logprobs", f"found {self.logprobs}, wanted 0 to {MAX_LOGPROBS}")
        if len(self.logit_bias) > MAX_LOGIT_BIASES:
            raise InvalidRequest(
                "sampling.logit_bias", f"found {len(self.logit_bias)} entries, wanted at most {MAX_LOGIT_BIASES}"
            )
        for token_id, bias in self.logit_bias:
            if not 0 <= token_id < vocab_size:
                raise InvalidRequest(
                    "sampling.logit_bias", f"token id {token_id} is outside the vocabulary of {vocab_size}"
                )
            _range("sampling.logit_bias", bias, -100.0, 100.0)


def _range(field: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    """Raises InvalidRequest unless `value` is finite and within [low, high] (or (low, high])."""
    inside = low < value <= high if open_low else low <= value <= high
    if not (math.isfinite(value) and inside):
        bracket = "(" if open_low else "["
        raise InvalidRequest(field, f"found {value}, wanted a number in {bracket}{low:g}, {high:g}]")
