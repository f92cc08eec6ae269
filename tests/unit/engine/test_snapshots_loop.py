"""The engine thread with a disk: restored prompts, and requests that end while their pages are being read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from sipd.engine.executor import Executor
from sipd.engine.kv_cache import PagePool
from sipd.engine.loop import Engine, EngineLimits
from sipd.engine.prefix_cache import PrefixCache
from sipd.engine.request import FinishReason, Request
from sipd.engine.reuse import Reuse
from sipd.engine.sampler import Sampler
from sipd.engine.sampling import SamplingOptions
from sipd.engine.snapshot_index import Segment
from sipd.engine.snapshot_lease import Hold
from sipd.engine.snapshot_worker import HANG_S
from sipd.engine.snapshots import Snapshots
from sipd.errors import Draining, StorageFault
from sipd.kernels import binding
from sipd.kernels.binding import PAGE_POSITIONS as PAGE
from tests.unit.engine.fake_executor import DEADLINE_S, VOCAB_SIZE, FakeExecutor, Sink
from tests.unit.engine.snapshot_pages import PAGE_BYTES, open_store, write


class StartedSink(Sink):
    """Tells when its request was admitted."""

    def __init__(self) -> None:
        super().__init__()
        self.has_started = threading.Event()

    def started(self) -> None:
        self.has_started.set()


class DiskRig:
    """An engine over a fake model and a real folder; `on_read` runs on the disk's thread before each read."""

    def __init__(self, folder: Path, on_read: Callable[[DiskRig], object]) -> None:
        self.executor = FakeExecutor(64)
        self.pool = PagePool(32, PAGE_BYTES)
        memory = memoryview(bytearray(32 * PAGE_BYTES))
        self.reuse = Reuse(self.pool, PrefixCache(self.pool), None, self.executor.copy_page)
        store = open_store(folder)
        write(store, range(6 * PAGE))
        read = store.read

        def held_read(segment: Segment, into: Sequence[memoryview], hold: Hold) -> None:
            on_read(self)
            read(segment, into, hold)

        store.read = held_read  # type: ignore[method-assign, assignment]
        self.now = 0.0
        self.snapshots = Snapshots(
            store,
            self.reuse,
            lambda page: memory[page * PAGE_BYTES : (page + 1) * PAGE_BYTES],
            512,
            60.0,
            lambda: self.now,
        )
        limits = EngineLimits(context_tokens=512, max_active=4, max_queued=8, rows_while_decoding=64)
        sampler = Sampler(binding.load_library(), VOCAB_SIZE)
        self.engine = Engine(cast("Executor", self.executor), sampler, self.reuse, limits, snapshots=self.snapshots)

    def submit(self, ids: Sequence[int]) -> tuple[Request, StartedSink]:
        sink = StartedSink()
        request = Request("r", tuple(ids), 3, SamplingOptions(), sink)
        self.engine.submit(request)
        return request, sink

    def check(self) -> None:
        assert self.executor.is_closed
        assert self.pool.n_promised == 0
        assert self.reuse.cache is not None
        assert self.pool.n_filled == self.reuse.cache.n_idle


@contextmanager
def disk_rig(folder: Path, on_read: Callable[[DiskRig], object]) -> Iterator[DiskRig]:
    made = DiskRig(folder, on_read)
    try:
        yield made
    finally:
        made.engine.stop()
    made.check()


def test_a_prompt_on_disk_is_not_computed(tmp_path: Path) -> None:
    with disk_rig(tmp_path, lambda _: None) as made:
        _, sink = made.submit(range(6 * PAGE))
        usage = sink.wait().usage
        assert (usage.cached_tokens, usage.restored_tokens) == (5 * PAGE,) * 2  # whole pages, and not the last token
        assert sink.ids == [6 * PAGE, 6 * PAGE + 1, 6 * PAGE + 2]
        assert [len(rows) for rows in made.executor.passes] == [PAGE, 1, 1]
        assert made.engine.status().restored_tokens_total == 5 * PAGE


def test_others_go_on_while_a_prompt_is_read(tmp_path: Path) -> None:
    gate = threading.Event()
    with disk_rig(tmp_path, lambda _: gate.wait(DEADLINE_S)) as made:
        _, reading = made.submit(range(6 * PAGE))
        assert reading.has_started.wait(DEADLINE_S)
        assert made.submit((7, 8))[1].reason() is FinishReason.LENGTH
        assert reading.outcomes.empty()
        gate.set()
        assert reading.reason() is FinishReason.LENGTH


def test_a_request_cancelled_while_its_pages_are_read_ends_at_once_and_gives_its_pages_back(tmp_path: Path) -> None:
    gate = threading.Event()
    with disk_rig(tmp_path, lambda _: gate.wait(DEADLINE_S)) as made:
        request, sink = made.submit(range(6 * PAGE))
        assert sink.has_started.wait(DEADLINE_S)
        made.engine.cancel(request)
        assert sink.reason() is FinishReason.CANCELLED
        assert made.submit((7, 8))[1].reason() is FinishReason.LENGTH
        assert made.pool.n_filled == 1, "the other request's, in the cache"
        gate.set()


def test_a_stop_in_the_middle_of_a_read_waits_for_it_and_frees_its_pages(tmp_path: Path) -> None:
    def until_stopped(made: DiskRig) -> None:
        worker = made.snapshots._worker
        with worker._wake:
            assert worker._wake.wait_for(lambda: worker._deadline is not None, DEADLINE_S)

    with disk_rig(tmp_path, until_stopped) as made:
        _, sink = made.submit(range(6 * PAGE))
        assert sink.has_started.wait(DEADLINE_S)
    outcome = sink.wait()
    assert outcome.reason is FinishReason.ERROR
    assert isinstance(outcome.error, Draining)


def test_a_snapshot_that_cannot_be_read_is_computed_and_says_the_same(tmp_path: Path) -> None:
    def fail(_made: DiskRig) -> None:
        raise StorageFault("snapshot", 0, "bad sector")

    with disk_rig(tmp_path, fail) as made:
        _, sink = made.submit(range(6 * PAGE))
        usage = sink.wait().usage
        assert (usage.cached_tokens, usage.restored_tokens) == (0, 0)
        assert sink.ids == [6 * PAGE, 6 * PAGE + 1, 6 * PAGE + 2]


def test_a_fault_that_nobody_foresaw_while_reading_is_computed_too(tmp_path: Path) -> None:
    def fail(_made: DiskRig) -> None:
        raise MemoryError

    with disk_rig(tmp_path, fail) as made:
        made.submit(range(PAGE + 9))[1].wait()
        _, sink = made.submit(range(6 * PAGE))
        usage = sink.wait().usage
        assert (usage.cached_tokens, usage.restored_tokens) == (PAGE, 0)
        assert sink.ids == [6 * PAGE, 6 * PAGE + 1, 6 * PAGE + 2]


def test_a_request_waits_no_longer_than_a_hung_disk_is_given(tmp_path: Path) -> None:
    gate, entered = threading.Event(), threading.Event()

    def hang(_made: DiskRig) -> None:
        entered.set()
        assert gate.wait(DEADLINE_S)

    with disk_rig(tmp_path, hang) as made:
        _, sink = made.submit(range(6 * PAGE))
        assert entered.wait(DEADLINE_S)
        made.now += HANG_S
        assert sink.reason() is FinishReason.LENGTH
        assert sink.ids == [6 * PAGE, 6 * PAGE + 1, 6 * PAGE + 2]
        fault = made.engine.status().snapshot_fault
        assert fault is not None
        assert fault[0] == str(tmp_path)
        gate.set()
    assert made.engine.status().restored_tokens_total == 0
