"""The snapshot thread over a disk whose calls do not come back: nothing lands late, and nobody waits for it."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sipd.engine import snapshot_worker
from sipd.engine.snapshot_lease import Lease
from sipd.engine.snapshot_store import SnapshotStore
from sipd.engine.snapshot_worker import SnapshotResult, SnapshotWorker
from sipd.errors import Cancelled
from tests.unit.engine.snapshot_pages import PAGE_BYTES, empty_pages, files_in, open_store, pages_of
from tests.unit.engine.snapshot_pages import write as write_now

DEADLINE_S = 20.0
HEAD = list(range(1000, 1100))
LONGER = [*HEAD, *range(5000, 5060)]
Answers = queue.Queue[SnapshotResult]


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return open_store(tmp_path)


def answer(answers: Answers) -> SnapshotResult:
    return answers.get(timeout=DEADLINE_S)


class HungDisk:
    """Calls to the disk that wait in the kernel, in a read of an empty pipe, until they are let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._reader, self._writer = os.pipe()

    def hang(self, call: Callable[..., int]) -> Callable[..., int]:
        """Returns `call` as a disk that hangs would have it."""

        def hung(*arguments: object) -> int:
            self.entered.set()
            os.read(self._reader, 1)
            return call(*arguments)

        return hung

    def let_go(self) -> None:
        os.close(self._writer)
        self._writer = -1

    def close(self) -> None:
        if self._writer >= 0:
            self.let_go()


@pytest.fixture
def disk() -> Iterator[HungDisk]:
    made = HungDisk()
    yield made
    made.close()


@pytest.fixture
def hanging(store: SnapshotStore, disk: HungDisk) -> Iterator[tuple[SnapshotWorker, Clock]]:
    """A worker and a clock that is turned by hand."""
    clock = Clock()
    worker = SnapshotWorker(store, clock)
    yield worker, clock
    disk.close()
    assert worker.close(DEADLINE_S)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_a_hung_disk_reads_late_lands_in_no_page(
    hanging: tuple[SnapshotWorker, Clock], store: SnapshotStore, disk: HungDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, clock = hanging
    answers, lease = Answers(), Lease()
    write_now(store, HEAD)
    found, into = store.find(HEAD), empty_pages(4)
    monkeypatch.setattr(os, "preadv", disk.hang(os.preadv))
    assert worker.read(found, into, answers.put, lease)
    assert disk.entered.wait(DEADLINE_S)
    clock.now += snapshot_worker.HANG_S
    lease.end()
    for page in into:
        page[:] = b"\xaa" * PAGE_BYTES  # somebody else's by now
    disk.let_go()
    assert isinstance(answer(answers).error, Cancelled)
    assert [bytes(page) for page in into] == [b"\xaa" * PAGE_BYTES] * 4
    assert worker.read(found, into, answers.put), "the file is as good as before"
    assert answer(answers).error is None
    assert into == pages_of(HEAD)


def test_a_hung_write_that_lost_its_pages_leaves_no_file(
    hanging: tuple[SnapshotWorker, Clock],
    store: SnapshotStore,
    disk: HungDisk,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker, clock = hanging
    answers, lease = Answers(), Lease()
    pages = pages_of(HEAD)
    monkeypatch.setattr(os, "pwritev", disk.hang(os.pwritev))
    assert worker.write(HEAD, 0, pages, answers.put, lease=lease)
    assert disk.entered.wait(DEADLINE_S)
    clock.now += snapshot_worker.HANG_S
    lease.end()
    disk.let_go()
    assert isinstance(answer(answers).error, Cancelled)
    assert (files_in(tmp_path), store.covered(HEAD)) == ([], 0)


def test_a_write_that_lost_its_pages_while_it_waited_is_not_begun(
    hanging: tuple[SnapshotWorker, Clock], store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, _ = hanging
    answers, lease = Answers(), Lease()
    lease.end()
    begun: list[object] = []
    with monkeypatch.context() as patched:
        patched.setattr(store, "write", lambda *given: begun.append(given))
        worker.write(HEAD, 0, pages_of(HEAD), answers.put, lease=lease)
        assert isinstance(answer(answers).error, Cancelled)
    assert begun == []


def test_while_the_disk_hangs_only_removals_are_taken_and_not_without_end(
    hanging: tuple[SnapshotWorker, Clock], store: SnapshotStore, disk: HungDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, clock = hanging
    answers = Answers()
    write_now(store, HEAD)
    found = store.find(HEAD)
    assert not worker.is_hung
    with monkeypatch.context() as patched:
        patched.setattr(os, "preadv", disk.hang(os.preadv))
        worker.read(found, empty_pages(4), answers.put)
        assert disk.entered.wait(DEADLINE_S)
        clock.now += snapshot_worker.HANG_S - 1
        assert not worker.is_hung
        clock.now += 1
        assert worker.is_hung
        assert not worker.read(found, empty_pages(4), answers.put)
        assert not worker.write(LONGER, 0, pages_of(LONGER), answers.put)
        removals = [worker.remove_owner("chat") for _ in range(snapshot_worker.MAX_REMOVALS + 1)]
        assert (removals.count(False), removals[-1]) == (1, False)
        disk.let_go()
        assert answer(answers).error is None
    deadline = time.monotonic() + 60
    while worker._writes:  # removals
        assert time.monotonic() < deadline
    assert not worker.is_hung
    assert worker.write(LONGER, 0, pages_of(LONGER), answers.put)
    assert answer(answers).n_bytes > 0


def test_a_disk_that_is_slow_and_moves_does_not_hang(
    hanging: tuple[SnapshotWorker, Clock], store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, clock = hanging
    answers = Answers()
    write_now(store, HEAD)
    states: list[bool] = []
    preadv = os.preadv

    def slow(fd: int, views: list[memoryview], at: int) -> int:
        clock.now += snapshot_worker.HANG_S / 4  # the head takes two reads
        states.append(worker.is_hung)
        return preadv(fd, views, at)

    monkeypatch.setattr(os, "preadv", slow)
    worker.read(store.find(HEAD), empty_pages(4), answers.put)
    assert answer(answers).error is None
    assert states == [False] * 6
