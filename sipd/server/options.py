"""Reads the options of a request: defaults filled in, bounds checked, fields named.

Invariant: presence decides, never zero; what is returned is what is echoed in Accepted and what the engine uses.
"""

from __future__ import annotations

import math
import re
import secrets
import struct
from dataclasses import dataclass

from sipd.config import Config
from sipd.engine.request import Priority
from sipd.engine.sampling import SamplingOptions
from sipd.errors import InvalidRequest
from sipd.text.stop import check_stop_strings
from sipd.v1 import generation_pb2 as pb

DEFAULT_MAX_TOKENS = 256
MAX_STOP_TOKEN_IDS = 64
_NAME = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_WANTED_NAME = "wanted 1 to 64 characters of A-Z a-z 0-9 . _ : -"
_PRIORITIES = {
    pb.PRIORITY_UNSPECIFIED: Priority.INTERACTIVE,
    pb.PRIORITY_INTERACTIVE: Priority.INTERACTIVE,
    pb.PRIORITY_BACKGROUND: Priority.BACKGROUND,
}
_FLOATS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


@dataclass(frozen=True, slots=True)
class StopOptions:
    """When generation ends; `max_tokens` is as asked, not yet bounded by the context."""

    max_tokens: int
    strings: tuple[str, ...]
    token_ids: frozenset[int]
    ignores_end_tokens: bool
    includes_stop: bool


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """How a request is served, as far as the settings allow; none of it changes its text."""

    priority: Priority
    session: str  # empty: none
    uses_prefix_cache: bool
    speculates: bool


def read_serving(message: pb.GenerateRequest, config: Config) -> ServingOptions:
    """Returns the checked options; raises InvalidRequest."""
    if message.priority not in _PRIORITIES:
        raise InvalidRequest("priority", f"found {message.priority}, wanted one of {sorted(_PRIORITIES)}")
    if message.HasField("session") and _NAME.fullmatch(message.session) is None:
        raise InvalidRequest("session", _WANTED_NAME)
    uses_prefix_cache = config.prefix_cache and (message.prefix_cache or not message.HasField("prefix_cache"))
    return ServingOptions(
        priority=_PRIORITIES[message.priority],
        session=message.session if config.max_sessions and uses_prefix_cache else "",
        uses_prefix_cache=uses_prefix_cache,
        speculates=config.speculation and (message.speculation or not message.HasField("speculation")),
    )


def write_priority(priority: Priority) -> pb.Priority:
    """Returns the priority as the contract names it."""
    return pb.PRIORITY_BACKGROUND if priority is Priority.BACKGROUND else pb.PRIORITY_INTERACTIVE


def read_request_id(message: pb.GenerateRequest) -> str:
    """Returns the client's id or a fresh one; raises InvalidRequest."""
    if not message.HasField("request_id"):
        return secrets.token_hex(8)
    if _NAME.fullmatch(message.request_id) is None:
        raise InvalidRequest("request_id", _WANTED_NAME)
    return str(message.request_id)


def read_sampling(message: pb.Sampling, vocab_size: int) -> SamplingOptions:
    """Returns the checked options, with a random seed when none was given; raises InvalidRequest."""
    given: dict[str, float] = {name: _shortest(getattr(message, name)) for name in _FLOATS if message.HasField(name)}
    options = SamplingOptions(
        **given,
        top_k=message.top_k if message.HasField("top_k") else 0,
        logit_bias=tuple(sorted((token_id, _shortest(bias)) for token_id, bias in message.logit_bias.items())),
        seed=message.seed if message.HasField("seed") else secrets.randbits(64),
        logprobs=message.logprobs if message.HasField("logprobs") else None,
    )
    options.check(vocab_size)
    return options


def write_sampling(options: SamplingOptions) -> pb.Sampling:
    """Returns the options in effect, every field set."""
    message = pb.Sampling(top_k=options.top_k, seed=options.seed, logit_bias=dict(options.logit_bias))
    for name in _FLOATS:
        setattr(message, name, getattr(options, name))
    if options.logprobs is not None:
        message.logprobs = options.logprobs
    return message


def read_stop(message: pb.Stop, vocab_size: int) -> StopOptions:
    """Returns the checked stop options; raises InvalidRequest."""
    max_tokens = message.max_tokens if message.HasField("max_tokens") else DEFAULT_MAX_TOKENS
    if max_tokens < 1:
        raise InvalidRequest("stop.max_tokens", "found 0, wanted at least 1")
    check_stop_strings(message.strings)
    if len(message.token_ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequest("stop.token_ids", f"found {len(message.token_ids)}, wanted at most {MAX_STOP_TOKEN_IDS}")
    for token_id in message.token_ids:
        if token_id >= vocab_size:
            raise InvalidRequest("stop.token_ids", f"token id {token_id} is outside the vocabulary of {vocab_size}")
    return StopOptions(
        max_tokens=max_tokens,
        strings=tuple(message.strings),
        token_ids=frozenset(message.token_ids),
        ignores_end_tokens=message.ignore_end_tokens,
        includes_stop=message.include_stop_in_output,
    )


def _shortest(value: float) -> float:
    """Returns the shortest decimal that the f32 `value` stands for: 0.8, not 0.800000011920929."""
    if not math.isfinite(value):  # left for the check
        return value
    for digits in range(6, 10):
        candidate = float(f"{value:.{digits}g}")
        if struct.pack("<f", candidate) == struct.pack("<f", value):
            return candidate
    return value
