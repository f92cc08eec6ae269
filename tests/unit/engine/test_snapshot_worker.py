"""The snapshot thread: every job is answered once, reads go first, nothing is raised, a stop is bounded."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from sipd.engine import snapshot_worker
from sipd.engine.snapshot_lease import Hold
from sipd.engine.snapshot_store import SnapshotStore
from sipd.engine.snapshot_worker import SnapshotResult, SnapshotWorker
from sipd.errors import Draining, EngineFault, StorageFault
from tests.unit.engine.snapshot_pages import CAP_BYTES, KEY, PAGE_BYTES, empty_pages, files_in, open_store, pages_of
from tests.unit.engine.snapshot_pages import write as write_now

DEADLINE_S = 20.0
HEAD = list(range(1000, 1100))
LONGER = [*HEAD, *range(5000, 5060)]
Answers = queue.Queue[SnapshotResult]


class HeldStore(SnapshotStore):
    """A store whose writes wait, between two pieces, until a test lets them go on."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, CAP_BYTES, KEY)
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def write(  # noqa: PLR0917 - as the store's
        self,
        ids: Sequence[int],
        first_page: int,
        pages: Sequence[memoryview],
        owner: str = "",
        between: Callable[[], None] = lambda: None,
        hold: Hold = nullcontext,
    ) -> int:
        def held() -> None:
            self.entered.set()
            assert self.go_on.wait(DEADLINE_S)
            between()

        return super().write(ids, first_page, pages, owner, held, hold)


@pytest.fixture
def store(tmp_path: Path) -> HeldStore:
    return HeldStore(tmp_path)


@pytest.fixture
def worker(store: HeldStore) -> Iterator[SnapshotWorker]:
    worker = SnapshotWorker(store)
    yield worker
    store.go_on.set()
    assert worker.close(DEADLINE_S)


def answer(answers: Answers) -> SnapshotResult:
    return answers.get(timeout=DEADLINE_S)


def test_a_segment_is_written_and_read(worker: SnapshotWorker, store: SnapshotStore) -> None:
    answers = Answers()
    assert worker.write(LONGER, 0, pages_of(LONGER), answers.put)
    written = answer(answers)
    assert (written.n_bytes, written.error) == (4096 + 5 * PAGE_BYTES, None)
    into = empty_pages(5)
    assert worker.read(store.find(LONGER), into, answers.put)
    read = answer(answers)
    assert (read.n_bytes, read.n_positions, read.error) == (5 * PAGE_BYTES, 160, None)
    assert into == pages_of(LONGER)


def test_a_chain_with_a_bad_end_is_read_up_to_it(worker: SnapshotWorker, store: SnapshotStore, tmp_path: Path) -> None:
    answers = Answers()
    write_now(store, HEAD)
    (head,) = files_in(tmp_path)
    write_now(store, LONGER, first_page=3)
    (end,) = set(files_in(tmp_path)) - {head}
    end.write_bytes(end.read_bytes()[:-1] + b"\xff")
    into = empty_pages(5)
    worker.read(store.find(LONGER), into, answers.put)
    read = answer(answers)
    assert isinstance(read.error, StorageFault)
    assert (read.n_bytes, read.n_positions) == (3 * PAGE_BYTES, 96)
    assert into[:3] == pages_of(LONGER)[:3]
    assert files_in(tmp_path) == [head]


def test_a_read_goes_before_the_rest_of_a_write(worker: SnapshotWorker, store: HeldStore) -> None:
    order: queue.Queue[str] = queue.Queue()
    write_now(store, HEAD)
    store.go_on.clear()
    store.entered.clear()
    worker.write(LONGER, 0, pages_of(LONGER), lambda _: order.put("write"))
    assert store.entered.wait(DEADLINE_S)
    worker.write([7], 0, pages_of([7]), lambda _: order.put("next write"))
    worker.read(store.find(HEAD), empty_pages(4), lambda _: order.put("read"))
    store.go_on.set()
    assert [order.get(timeout=DEADLINE_S) for _ in range(3)] == ["read", "write", "next write"]


def test_jobs_beyond_the_queue_are_refused_at_once(worker: SnapshotWorker, store: HeldStore) -> None:
    answers = Answers()
    write_now(store, HEAD)
    found = store.find(HEAD)
    store.go_on.clear()
    store.entered.clear()
    worker.write(LONGER, 0, pages_of(LONGER), answers.put)
    assert store.entered.wait(DEADLINE_S)
    writes = [worker.write([n], 0, pages_of([n]), answers.put) for n in range(snapshot_worker.MAX_WRITES + 1)]
    reads = [worker.read(found, empty_pages(4), answers.put) for _ in range(snapshot_worker.MAX_READS + 1)]
    assert (writes.count(False), writes[-1]) == (1, False)
    assert (reads.count(False), reads[-1]) == (1, False)
    store.go_on.set()
    for _ in range(1 + snapshot_worker.MAX_WRITES + snapshot_worker.MAX_READS):
        assert answer(answers).error is None


def test_an_unexpected_fault_is_an_answer(
    worker: SnapshotWorker, store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("by zero")

    answers = Answers()
    with monkeypatch.context() as patched:
        patched.setattr(store, "write", fail)
        worker.write(HEAD, 0, pages_of(HEAD), answers.put)
        error = answer(answers).error
    assert isinstance(error, EngineFault)
    assert "ZeroDivisionError: by zero" in str(error)
    worker.write(HEAD, 0, pages_of(HEAD), answers.put)
    assert answer(answers).n_bytes > 0


def test_an_answer_that_raises_stops_nobody(worker: SnapshotWorker) -> None:
    def fail(_: SnapshotResult) -> None:
        raise ZeroDivisionError

    answers = Answers()
    worker.write(HEAD, 0, pages_of(HEAD), fail)
    worker.write(LONGER, 0, pages_of(LONGER), answers.put)
    assert answer(answers).n_bytes > 0


def test_pages_are_let_go_once_answered(worker: SnapshotWorker) -> None:
    answers = Answers()
    content = bytearray(PAGE_BYTES)
    worker.write([1], 0, [memoryview(content)], answers.put)
    answer(answers)
    worker.write([2], 0, pages_of([2]), answers.put)
    answer(answers)
    content.append(0)  # BufferError while anyone holds a view


def test_a_session_that_ends_takes_writes_that_still_wait_with_it(
    worker: SnapshotWorker, store: HeldStore, tmp_path: Path
) -> None:
    answers = Answers()
    store.go_on.clear()
    worker.write(HEAD, 0, pages_of(HEAD), answers.put, "chat")
    worker.write(LONGER, 0, pages_of(LONGER), answers.put, "chat")
    assert worker.remove_owner("chat")
    worker.write([1], 0, pages_of([1]), answers.put)
    store.go_on.set()
    assert [answer(answers).n_bytes > 0 for _ in range(3)] == [True, True, True]
    assert (store.covered(LONGER, "chat"), store.covered([1])) == (0, 1)
    assert len(files_in(tmp_path)) == 1


def test_a_stop_waits_for_writes(store: HeldStore, tmp_path: Path) -> None:
    answers = Answers()
    worker = SnapshotWorker(store)
    for n in range(5):
        worker.write([n], 0, pages_of([n]), answers.put)
    assert worker.close(DEADLINE_S)
    assert [answers.get_nowait().error for _ in range(5)] == [None] * 5
    assert len(files_in(tmp_path)) == 5
    assert not worker.write(HEAD, 0, pages_of(HEAD), answers.put)
    assert not worker.remove_owner("chat")


def test_a_stop_without_time_gives_writes_up_and_still_removes(store: HeldStore, tmp_path: Path) -> None:
    answers = Answers()
    worker = SnapshotWorker(store)
    write_now(store, HEAD, owner="chat")
    store.entered.clear()
    store.go_on.clear()
    worker.write(LONGER, 0, pages_of(LONGER), answers.put)
    assert store.entered.wait(DEADLINE_S)
    worker.write([1], 0, pages_of([1]), answers.put)
    worker.remove_owner("chat")
    worker.read(store.find(HEAD), empty_pages(4), answers.put)
    stopper = threading.Thread(target=worker.close, args=(0.0,))
    stopper.start()
    while worker.remove_idle(1e9):  # refused once the stop has begun
        pass
    store.go_on.set()
    stopper.join(DEADLINE_S)
    assert [type(answer(answers).error) for _ in range(3)] == [Draining] * 3
    assert files_in(tmp_path) == []


def test_an_idle_worker_ends_at_once(tmp_path: Path) -> None:
    worker = SnapshotWorker(open_store(tmp_path))
    assert worker.close(0.0)
    assert worker.close(0.0)
