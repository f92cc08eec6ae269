"""Whole engines over tiny models inside the test's process, with waits that have deadlines."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from sipd.config import Config
from sipd.engine.build import build_engine
from sipd.engine.loop import Engine
from sipd.engine.request import Outcome, Request, SampledToken
from sipd.engine.sampling import SamplingOptions
from sipd.memory import Ledger
from sipd.weights.checkpoint import open_checkpoint

PLENTY = 1 << 28
DEADLINE_S = 60.0
# Small tiles, a small ring and nothing pinned: even a tiny model streams
STREAMED = Config(
    threads=1,
    context=256,
    pin=False,
    tile_bytes=4096,
    ring_slots=3,
    readers=2,
    max_requests=4,
    prefix_cache=False,
    speculation=False,
)


class Listener:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.outcomes: queue.Queue[Outcome] = queue.Queue()

    def started(self) -> None:
        """Nothing to do."""

    def token(self, token: SampledToken) -> bool:
        """Keeps a token."""
        self.ids.append(token.token_id)
        return False

    def finished(self, outcome: Outcome) -> None:
        """Keeps the end."""
        self.outcomes.put(outcome)

    def wait(self) -> Outcome:
        """How it ended."""
        return self.outcomes.get(timeout=DEADLINE_S)


@contextmanager
def running(path: Path, config: Config = STREAMED, n_bytes: int = PLENTY, **values: Any) -> Iterator[Engine]:  # noqa: ANN401
    """Runs an engine over `path` that may use `n_bytes`; `values` override the configuration."""
    checkpoint = open_checkpoint(path)
    engine = build_engine(replace(config, model=path, **values), checkpoint, Ledger(n_bytes, 0, 0))
    try:
        yield engine
    finally:
        engine.stop()


def submit(
    engine: Engine, prompt: Sequence[int], max_tokens: int, sampling: SamplingOptions | None = None
) -> tuple[Request, Listener]:
    """Submits a request that no end token ends."""
    listener = Listener()
    request = Request("r", tuple(prompt), max_tokens, sampling or SamplingOptions(), listener)
    engine.submit(request)
    return request, listener


def ask(
    engine: Engine, prompt: Sequence[int], max_tokens: int, sampling: SamplingOptions | None = None
) -> tuple[list[int], Outcome]:
    """Ids and end of one request."""
    _, listener = submit(engine, prompt, max_tokens, sampling)
    outcome = listener.wait()
    return listener.ids, outcome
