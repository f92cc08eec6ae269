"""Engines inside the test's process, with a ledger of exactly the bytes that a test asks for."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sipd.config import Config
from sipd.engine.build import build_engine, divide_budget
from sipd.engine.layout import Layout
from sipd.engine.loop import Engine
from sipd.engine.request import Outcome, Request, SampledToken
from sipd.engine.sampling import SamplingOptions
from sipd.kernels import binding
from sipd.memory import Ledger
from sipd.models.registry import build_program
from sipd.models.small_tensors import read_f32
from sipd.weights.checkpoint import open_checkpoint
from sipd.weights.reader import WeightFiles

PLENTY = 2 << 30
DEADLINE_S = 600.0


class Collector:
    """A sink that keeps everything; `on_token` is called in the engine thread."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.outcome: Outcome | None = None
        self.has_started = threading.Event()
        self.is_done = threading.Event()

    def started(self) -> None:
        """The first pass begins."""
        self.has_started.set()

    def token(self, token: SampledToken) -> bool:
        """Keeps a token."""
        self.ids.append(token.token_id)
        return False

    def finished(self, outcome: Outcome) -> None:
        """Keeps the end."""
        self.outcome = outcome
        self.is_done.set()

    def wait(self) -> Outcome:
        """Returns how it ended."""
        assert self.is_done.wait(DEADLINE_S), "no end within the deadline"
        assert self.outcome is not None
        return self.outcome


def settings(model: Path, **values: Any) -> Config:  # noqa: ANN401 - whatever Config takes
    """Returns a configuration for one model; every token of it is computed by itself unless `values` say otherwise."""
    return replace(Config(prefix_cache=False, speculation=False), model=model, **values)


@contextmanager
def running_engine(config: Config, n_bytes: int = PLENTY) -> Iterator[Engine]:
    """Runs an engine that may use `n_bytes`; stops it at the end."""
    assert config.model is not None
    engine = build_engine(config, open_checkpoint(config.model), Ledger(n_bytes, 0, 0))
    try:
        yield engine
    finally:
        engine.stop()


def smallest_layout(config: Config, n_bytes: int = 0) -> Layout:
    """Returns how `n_bytes` are divided; with 0, the least that one request needs."""
    assert config.model is not None
    library = binding.load_library()
    checkpoint = open_checkpoint(config.model)
    files = WeightFiles(checkpoint.files, checkpoint.file_sizes, direct="off")
    try:
        program = build_program(checkpoint, lambda tensor: list(read_f32(library, files, tensor)))
        return divide_budget(library, program, config, n_bytes)
    finally:
        files.close()


def layout_bytes(layout: Layout) -> int:
    """Returns the sum of all terms."""
    return sum(n_bytes for _, n_bytes in layout.terms)


@dataclass(frozen=True, slots=True)
class Reply:
    """Ids and end of one request."""

    ids: list[int]
    outcome: Outcome


def submit(
    engine: Engine, prompt_ids: Sequence[int], max_tokens: int, sampling: SamplingOptions | None = None
) -> tuple[Request, Collector]:
    """Submits one request that no end token ends."""
    sink = Collector()
    request = Request("acceptance", tuple(prompt_ids), max_tokens, sampling or SamplingOptions(), sink)
    engine.submit(request)
    return request, sink


def ask(engine: Engine, prompt_ids: Sequence[int], max_tokens: int, sampling: SamplingOptions | None = None) -> Reply:
    """Returns the reply to one request."""
    _, sink = submit(engine, prompt_ids, max_tokens, sampling)
    outcome = sink.wait()
    assert outcome.error is None, outcome.error
    return Reply(sink.ids, outcome)


def ask_each(engine: Engine, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
    """Returns the ids of each reply; one request at a time."""
    return [ask(engine, prompt_ids, max_tokens).ids for prompt_ids in prompts]


def ask_together(engine: Engine, prompts: Sequence[tuple[Sequence[int], int]]) -> list[Reply]:
    """Returns the replies to (prompt, max_tokens) pairs that are all submitted before any is waited for."""
    sinks = [submit(engine, prompt_ids, max_tokens)[1] for prompt_ids, max_tokens in prompts]
    replies = [Reply(sink.ids, sink.wait()) for sink in sinks]
    assert all(reply.outcome.error is None for reply in replies)
    return replies
