"""An engine that gives memory back and takes it again: the same tokens, and the ledger follows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sipd.config import Config
from sipd.engine.build import build_engine
from sipd.engine.loop import Engine
from sipd.engine.request import Outcome, Request
from sipd.engine.sampling import SamplingOptions
from sipd.memory import Ledger, MemoryLimit
from sipd.weights.checkpoint import open_checkpoint
from sipd.weights.tensor_table import QuantType
from tests.builders import build_gguf
from tests.hostile.storage_driver import Sink

CONFIG = Config(threads=1, context=256, tile_bytes=4096, max_requests=2, direct_io="off")
RESIDENT, PARTLY_PINNED = 1 << 26, 1_400_000
WAIT_S = 20.0
N_TOKENS = 12
EVERYTHING = 1 << 40


class Served:
    """An engine over a tiny model, its ledger and what it says."""

    def __init__(self, engine: Engine, ledger: Ledger) -> None:
        self.engine = engine
        self.ledger = ledger
        self.full = ledger.limit_bytes

    def ask(self, first: int = 5, on_token: Callable[[int], None] = lambda _n: None) -> tuple[list[int], Outcome]:
        sink = Sink(on_token)
        prompt, options = tuple(range(first, first + 95)), SamplingOptions(temperature=0.8, seed=1)
        self.engine.submit(Request("r", prompt, N_TOKENS, options, sink))
        outcome = sink.outcomes.get(timeout=WAIT_S)
        assert outcome.error is None
        return sink.ids, outcome

    def ids(self, first: int = 5) -> list[int]:
        return self.ask(first)[0]

    def streamed_per_pass(self) -> float:
        """Weight bytes that a pass streams, embedding rows apart."""
        before = self.engine.status()
        self.ids()
        after = self.engine.status()
        streamed = after.streamed_bytes_total - before.streamed_bytes_total
        streamed -= after.embedding_bytes_total - before.embedding_bytes_total
        return streamed / (after.n_passes - before.n_passes)

    def lower(self, granted: int) -> list[int]:
        """The limit is what holds `granted` bytes; returns ids of a request after the engine has followed."""
        self.ledger.relimit(MemoryLimit(granted, "cgroup v2"))
        self.engine.shrink(lambda: self.ledger.shortfall().n_bytes)
        deadline = time.monotonic() + WAIT_S
        while self.ledger.shortfall().n_bytes:  # an idle engine does it at once
            assert time.monotonic() < deadline, self.ledger.table()
        return self.ids()

    def raise_to(self, limit: int) -> list[int]:
        """The limit is raised; returns ids of a request in whose time the engine has followed."""
        self.ledger.relimit(MemoryLimit(limit, "cgroup v2"))
        self.engine.grow(self.ledger.remaining)
        return self.ids()

    def shrink_to_the_least(self) -> list[int]:
        """Everything that can be is given back; returns ids of a request in whose time it is."""
        self.engine.shrink(lambda: EVERYTHING)
        return self.ids()


@contextmanager
def serving(
    folder: Path, n_bytes: int, *, tied: bool = False, caches: bool = False, isa: str = "auto"
) -> Iterator[Served]:
    model = build_gguf(folder / "m.gguf", quant=QuantType.Q8_0, vocab_size=331, tied=tied, d_ff=2048)
    ledger = Ledger(n_bytes, 0, 0)
    engine = build_engine(replace(CONFIG, model=model, prefix_cache=caches, isa=isa), open_checkpoint(model), ledger)
    try:
        yield Served(engine, ledger)
    finally:
        engine.stop()


@pytest.mark.parametrize("budget", [RESIDENT, PARTLY_PINNED])
@pytest.mark.parametrize("tied", [True, False])
def test_a_limit_that_falls_and_rises_changes_the_bytes_of_a_pass_and_back_and_no_token(
    tmp_path: Path, *, tied: bool, budget: int
) -> None:
    with serving(tmp_path, budget, tied=tied) as served:
        wanted = served.ids()
        first, granted = served.engine.status(), served.ledger.granted()
        streamed = served.streamed_per_pass()
        assert (streamed == 0) == (budget == RESIDENT)
        assert served.lower(granted - 90_000) == wanted
        low = served.engine.status()
        assert low.plan_bytes - first.plan_bytes == first.pinned_bytes - low.pinned_bytes > 0
        assert served.streamed_per_pass() > streamed
        assert served.raise_to(granted - 40_000) == wanted
        middle = served.engine.status()
        assert low.pinned_bytes < middle.pinned_bytes < first.pinned_bytes
        assert served.raise_to(served.full) == wanted
        assert served.streamed_per_pass() == streamed
        assert served.ledger.granted() == granted
        last = served.engine.status()
        assert (last.plan_bytes, last.pinned_bytes) == (first.plan_bytes, first.pinned_bytes)


def test_every_sum_that_fits_has_its_own_pins_whatever_came_before(tmp_path: Path) -> None:
    with serving(tmp_path, RESIDENT) as served:
        wanted, granted = served.ids(), served.ledger.granted()
        pinned: dict[int, int] = {}
        for less in (30_000, 60_000, 120_000):
            served.lower(granted - less)
            pinned[less] = served.engine.status().pinned_bytes
        for less in (60_000, 30_000):
            assert served.raise_to(granted - less) == wanted
            assert served.engine.status().pinned_bytes == pinned[less]


def test_pages_are_given_back_when_pins_are_not_enough_and_taken_again(tmp_path: Path) -> None:
    with serving(tmp_path, RESIDENT, caches=True) as served:
        wanted, others = served.ids(), (served.ids(105), served.ids(205))
        page_bytes = served.ask()[1].usage.kv_bytes // 4
        first, granted = served.engine.status(), served.ledger.granted()
        assert first.kv_bytes_cached > 0
        least = first.kv_bytes_granted // 2  # the context: two requests have twice as much
        assert served.shrink_to_the_least() == wanted
        lowest, low = served.ledger.granted(), served.engine.status()
        assert (low.kv_bytes_granted, low.plan_bytes > first.plan_bytes) == (least, True)
        assert low.kv_bytes_cached + low.kv_bytes_in_use <= least
        assert served.raise_to(lowest + page_bytes + 1) == wanted
        after = served.engine.status()
        assert (after.kv_bytes_granted, after.pinned_bytes) == (least + page_bytes, low.pinned_bytes)
        assert served.raise_to(served.full) == wanted
        assert served.lower(lowest + 3 * page_bytes + 1) == wanted
        assert served.engine.status().kv_bytes_granted == least + 3 * page_bytes
        assert (served.ids(105), served.ids(205)) == others
        assert served.raise_to(served.full) == wanted
        last = served.engine.status()
        assert (last.kv_bytes_granted, last.pinned_bytes) == (first.kv_bytes_granted, first.pinned_bytes)
        assert served.ledger.granted() == granted
        assert (served.ids(105), served.ids(205)) == others


def test_a_running_request_keeps_its_pages_and_says_the_same(tmp_path: Path) -> None:
    with serving(tmp_path, RESIDENT, caches=True) as served:
        wanted = served.ids()

        def shrink_now(_n: int) -> None:
            served.engine.shrink(lambda: EVERYTHING)

        ids, outcome = served.ask(5, shrink_now)
        assert ids == wanted
        assert outcome.usage.cached_tokens == 94
        assert served.ids() == wanted
        served.engine.grow(lambda: EVERYTHING)
        assert served.ids() == wanted


def test_nothing_is_given_back_when_nothing_is_too_much_and_nothing_taken_that_was_not_given(tmp_path: Path) -> None:
    with serving(tmp_path, PARTLY_PINNED) as served:
        wanted = served.ids()
        before = served.engine.status()
        served.engine.shrink(lambda: 0)
        served.engine.grow(lambda: EVERYTHING)
        assert served.ids() == wanted
        after = served.engine.status()
        assert (after.pinned_bytes, after.kv_bytes_granted) == (before.pinned_bytes, before.kv_bytes_granted)


def test_the_twin_gives_pages_back_too(tmp_path: Path) -> None:
    with serving(tmp_path, RESIDENT, caches=True, isa="numpy") as served:
        wanted, granted = served.ids(), served.engine.status().kv_bytes_granted
        assert served.shrink_to_the_least() == wanted
        assert served.engine.status().kv_bytes_granted == granted // 2
        assert served.raise_to(served.full) == wanted
        assert served.engine.status().kv_bytes_granted == granted
