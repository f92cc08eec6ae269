"""Requests to an engine in this process, and when each of their tokens came."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from sipd.engine.loop import Engine
from sipd.engine.request import EngineStatus, Outcome, Request, SampledToken
from sipd.engine.sampling import SamplingOptions

_DEADLINE_S = 900.0


@dataclass(eq=False, slots=True)
class Watch:
    """A sink: the ids of one request, when they came by time.monotonic(), and the engine at the first and the last."""

    status: Callable[[], EngineStatus]
    times: list[float] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    at_first: EngineStatus | None = None
    at_end: EngineStatus | None = None
    outcome: Outcome | None = None
    first_came: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)

    def started(self) -> None:
        """Nothing to do."""

    def token(self, token: SampledToken) -> bool:
        """Notes it."""
        self.times.append(time.monotonic())
        self.ids.append(token.token_id)
        if self.at_first is None:
            self.at_first = self.status()
            self.first_came.set()
        return False

    def finished(self, outcome: Outcome) -> None:
        """Wakes whoever waits."""
        self.at_end = self.status()
        self.outcome = outcome
        self.first_came.set()
        self.done.set()

    def wait(self, *, may_fail: bool = False) -> Outcome:
        """How it ended; raises its error unless it may fail."""
        if not self.done.wait(_DEADLINE_S) or self.outcome is None:
            raise TimeoutError(f"no end within {_DEADLINE_S:g} s")
        if self.outcome.error is not None and not may_fail:
            raise self.outcome.error
        return self.outcome

    @property
    def decode_tokens_per_s(self) -> float:
        """The rate after the first token."""
        return (len(self.times) - 1) / (self.times[-1] - self.times[0]) if len(self.times) > 1 else 0.0


def send(
    engine: Engine,
    prompt_ids: Sequence[int],
    max_tokens: int,
    client: str,
    *,
    uses_prefix_cache: bool = False,
    speculates: bool = False,
    session: str = "",
    end_ids: frozenset[int] = frozenset(),
) -> tuple[Request, Watch]:
    """Submits a request; unless asked for, it shares no keys and values and guesses nothing."""
    watch = Watch(engine.status)
    request = Request(
        client,
        tuple(prompt_ids),
        max_tokens,
        SamplingOptions(),
        watch,
        end_ids=end_ids,
        client=client,
        session=session,
        uses_prefix_cache=uses_prefix_cache,
        speculates=speculates,
    )
    engine.submit(request)
    return request, watch


def warm_up(engine: Engine, prompt_ids: Sequence[int], n_tokens: int = 6) -> None:
    """Lets the pinned weights arrive and the cost model learn passes of few and of many rows."""
    for _ in range(2):
        send(engine, prompt_ids, n_tokens, "warm-up")[1].wait()


def gaps_between(times: Sequence[float], begin: float, end: float) -> list[float]:
    """Seconds between tokens that follow each other, where the gap ends after `begin` and starts before `end`."""
    pairs = itertools.pairwise(times)
    return [late - early for early, late in pairs if late > begin and early < end]


def middle(values: Sequence[float]) -> float:
    """The median; 0 of nothing."""
    return median(values) if values else 0.0
