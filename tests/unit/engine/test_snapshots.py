"""Pages and the disk: what is read for a prompt, what is written, and who holds pages until the disk is done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from sipd.engine.kv_cache import PagePool
from sipd.engine.pass_plan import Sequence as Running
from sipd.engine.prefix_cache import PrefixCache
from sipd.engine.request import Request
from sipd.engine.reuse import Reuse
from sipd.engine.sampling import SamplingOptions
from sipd.engine.snapshot_index import Segment
from sipd.engine.snapshot_worker import Done, SnapshotResult, SnapshotWorker
from sipd.engine.snapshots import FORGET_EVERY_S, MIN_RESTORED, Snapshots
from sipd.errors import EngineFault, StorageFault
from sipd.kernels.binding import PAGE_POSITIONS as PAGE
from tests.unit.engine.fake_executor import Sink
from tests.unit.engine.snapshot_pages import PAGE_BYTES, files_in, open_store, pages_of, write

MIN_TOKENS = 3 * PAGE


def numbers(n: int, first: int = 0) -> tuple[int, ...]:
    return tuple(range(first, first + n))


@dataclass
class FakeWorker:
    """Takes jobs and does nothing until a test says how they ended."""

    is_full: bool = False
    reads: list[tuple[list[Segment], Done]] = field(default_factory=list)
    writes: list[tuple[tuple[int, ...], int, list[memoryview], Done, str]] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    idle_removals: list[tuple[float, list[str]]] = field(default_factory=list)

    def read(self, segments: Sequence[Segment], pages: Sequence[memoryview], done: Done) -> bool:
        if not self.is_full:
            assert len(pages) == sum(segment.n_pages for segment in segments)
            self.reads.append((list(segments), done))
        return not self.is_full

    def write(
        self, ids: Sequence[int], first_page: int, pages: Sequence[memoryview], done: Done, owner: str = ""
    ) -> bool:
        if not self.is_full:
            self.writes.append((tuple(ids), first_page, list(pages), done, owner))
        return not self.is_full

    def remove_owner(self, owner: str) -> bool:
        self.removed.append(owner)
        return True

    def remove_idle(self, idle_s: float, live_owners: Sequence[str]) -> bool:
        self.idle_removals.append((idle_s, list(live_owners)))
        return True

    def close(self, _timeout_s: float) -> bool:
        for _, done in self.reads:
            done(SnapshotResult(error=EngineFault("stopping")))
        return True


class Kit:
    """Snapshots over a folder, and a pool whose pages are bytes."""

    def __init__(self, folder: Path, n_pages: int = 16) -> None:
        self.memory = bytearray(n_pages * PAGE_BYTES)
        self.pool = PagePool(n_pages, PAGE_BYTES)
        self.cache = PrefixCache(self.pool)
        self.reuse = Reuse(self.pool, self.cache)
        self.store = open_store(folder)
        self.snapshots = Snapshots(self.store, self.reuse, self.page, MIN_TOKENS, 60.0)
        self.real_worker = self.snapshots._worker
        self.worker = FakeWorker()
        self.snapshots._worker = cast("SnapshotWorker", self.worker)
        self.n_woken = 0
        self.snapshots.wake = self.count_wake

    def count_wake(self) -> None:
        self.n_woken += 1

    def page(self, index: int) -> memoryview:
        return memoryview(self.memory)[index * PAGE_BYTES : (index + 1) * PAGE_BYTES]

    def admit(self, ids: tuple[int, ...], session: str = "", max_tokens: int = 1) -> Running:
        request = Request("r", ids, max_tokens, SamplingOptions(), Sink(), session=session)
        sequence = self.reuse.admit(request)
        assert sequence is not None
        return sequence

    def compute(self, sequence: Running) -> None:
        ids = sequence.request.prompt_ids
        sequence.pages.cover(len(ids))
        first = sequence.request.n_computed // PAGE
        for page, content in zip(sequence.pages.pages[first:], pages_of(ids, first), strict=True):
            self.page(page)[:] = content
        sequence.request.n_computed = len(ids)
        self.reuse.computed(sequence)

    def check(self) -> None:
        assert self.pool.n_promised == 0
        assert self.pool.n_filled == self.cache.n_idle


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    made = Kit(tmp_path)
    yield made
    assert made.real_worker.close(5.0)


def test_a_prompt_on_disk_is_read_into_its_pages_but_for_the_last_token(kit: Kit) -> None:
    write(kit.store, numbers(100))
    sequence = kit.admit(numbers(100))
    kit.snapshots.restore(sequence)
    assert sequence.is_restoring
    ((segments, done),) = kit.worker.reads
    assert (segments[0].first_page, segments[-1].n_positions) == (0, 99)
    done(SnapshotResult(n_positions=99))
    assert (kit.n_woken, sequence.request.n_computed) == (1, 0), "the disk's thread touches no sequence"
    assert kit.snapshots.has_news
    kit.snapshots.finish()
    assert not kit.snapshots.has_news
    assert not sequence.is_restoring
    assert (sequence.request.n_computed, sequence.request.usage.restored_tokens) == (96, 96)
    kit.reuse.end(sequence)
    kit.check()


@pytest.mark.parametrize("n_more", [MIN_RESTORED - 1, MIN_RESTORED])
def test_only_what_is_worth_a_read_is_read(kit: Kit, n_more: int) -> None:
    write(kit.store, numbers(PAGE + n_more))
    kit.compute(first := kit.admit(numbers(PAGE)))
    sequence = kit.admit((*numbers(PAGE + n_more), 7))
    kit.snapshots.restore(sequence)
    assert sequence.is_restoring == bool(kit.worker.reads) == (n_more == MIN_RESTORED)
    if kit.worker.reads:
        assert kit.worker.reads[0][0][0].first_page == 1, "the shared page is not read into"
        kit.worker.reads[0][1](SnapshotResult(n_positions=PAGE + n_more))
        kit.snapshots.finish()
    kit.reuse.end(sequence)
    kit.reuse.end(first)
    kit.check()


def test_a_request_that_wants_no_reuse_reads_and_writes_nothing(kit: Kit) -> None:
    write(kit.store, numbers(100))
    request = Request("r", numbers(200), 1, SamplingOptions(), Sink(), uses_prefix_cache=False)
    sequence = kit.reuse.admit(request)
    assert sequence is not None
    kit.snapshots.restore(sequence)
    kit.compute(sequence)
    kit.snapshots.keep_prompt(sequence)
    assert (kit.worker.reads, kit.worker.writes) == ([], [])
    kit.reuse.end(sequence)
    kit.check()


def test_a_prompt_is_computed_when_the_disk_has_too_much_to_do_or_is_closed(kit: Kit) -> None:
    write(kit.store, numbers(100))
    kit.worker.is_full = True
    sequence = kit.admit(numbers(100))
    kit.snapshots.restore(sequence)
    assert (sequence.is_restoring, sequence.n_left) == (False, 100)
    kit.compute(sequence)
    kit.reuse.end(sequence)
    kit.check()


def test_a_read_that_fails_leaves_its_tokens_to_be_computed(kit: Kit) -> None:
    write(kit.store, numbers(100))
    sequence = kit.admit(numbers(100))
    kit.snapshots.restore(sequence)
    kit.worker.reads[0][1](SnapshotResult(n_positions=PAGE, error=StorageFault("p", 0, "bad")))
    kit.snapshots.finish()
    assert (sequence.is_restoring, sequence.request.n_computed, sequence.n_left) == (False, PAGE, 100 - PAGE)
    kit.compute(sequence)
    kit.reuse.end(sequence)
    kit.check()


@pytest.mark.parametrize("error", [None, StorageFault("p", 0, "bad")])
def test_pages_of_a_request_that_ended_are_held_until_the_disk_is_done(kit: Kit, error: StorageFault | None) -> None:
    write(kit.store, numbers(100))
    sequence = kit.admit(numbers(100))
    kit.snapshots.restore(sequence)
    kit.snapshots.abandon(sequence)
    kit.snapshots.finish()
    assert (kit.pool.n_filled, kit.pool.n_promised) == (4, 4)
    kit.worker.reads[0][1](SnapshotResult(n_positions=99, error=error))
    kit.snapshots.finish()
    assert kit.pool.n_filled == 0
    assert not kit.snapshots._orphans
    kit.check()


def test_a_stop_gives_the_pages_of_reads_in_flight_back(kit: Kit) -> None:
    write(kit.store, numbers(100))
    sequence = kit.admit(numbers(100))
    kit.snapshots.restore(sequence)
    kit.snapshots.abandon(sequence)
    assert kit.snapshots.close()
    assert kit.pool.n_filled == 0
    kit.check()


@pytest.mark.parametrize(("n", "is_written"), [(MIN_TOKENS - 1, False), (MIN_TOKENS, True), (MIN_TOKENS + 20, True)])
def test_a_head_is_written_when_enough_of_it_is_new(kit: Kit, n: int, *, is_written: bool) -> None:
    sequence = kit.admit(numbers(n))
    kit.compute(sequence)
    kit.snapshots.keep_prompt(sequence)
    assert len(kit.worker.writes) == is_written
    if is_written:
        ids, first_page, pages, done, owner = kit.worker.writes[0]
        assert (ids, first_page, owner) == (numbers(MIN_TOKENS), 0, "")
        assert [bytes(page) for page in pages] == [bytes(page) for page in pages_of(ids)]
        done(SnapshotResult())
    kit.reuse.end(sequence)
    kit.snapshots.finish()
    kit.check()


def test_only_what_the_disk_does_not_have_is_written(kit: Kit) -> None:
    write(kit.store, numbers(2 * PAGE))
    sequence = kit.admit(numbers(2 * PAGE + MIN_TOKENS))
    kit.compute(sequence)
    kit.snapshots.keep_prompt(sequence)
    ((ids, first_page, pages, done, _),) = kit.worker.writes
    assert (len(ids), first_page, len(pages)) == (2 * PAGE + MIN_TOKENS, 2, 3)
    done(SnapshotResult())
    kit.snapshots.finish()
    kit.reuse.end(sequence)
    kit.check()


def test_pages_are_held_while_they_are_written_though_their_request_has_ended(kit: Kit) -> None:
    sequence = kit.admit(numbers(MIN_TOKENS))
    kit.compute(sequence)
    kit.snapshots.keep_prompt(sequence)
    kit.reuse.end(sequence)
    assert not kit.cache.give_up()
    kit.worker.writes[0][3](SnapshotResult(error=StorageFault("p", 0, "full")))
    assert kit.n_woken == 1
    assert kit.snapshots.has_news
    kit.snapshots.finish()
    assert kit.cache.give_up()
    kit.check()


def test_writes_hold_half_of_the_pool_at_most_but_for_a_single_long_one(kit: Kit) -> None:
    for first, n_writes in ((0, 1), (1000, 2), (2000, 2)):  # 3 of 16 pages each
        sequence = kit.admit(numbers(MIN_TOKENS, first))
        kit.compute(sequence)
        kit.snapshots.keep_prompt(sequence)
        kit.reuse.end(sequence)
        assert len(kit.worker.writes) == n_writes
    for write_ in kit.worker.writes:
        write_[3](SnapshotResult())
    kit.snapshots.finish()
    sequence = kit.admit(numbers(10 * PAGE, 3000))
    kit.compute(sequence)
    kit.snapshots.keep_prompt(sequence)
    kit.reuse.end(sequence)
    assert len(kit.worker.writes) == 3
    kit.worker.writes[2][3](SnapshotResult())
    kit.snapshots.finish()
    kit.check()


def test_a_write_that_is_not_taken_holds_nothing(kit: Kit) -> None:
    kit.worker.is_full = True
    sequence = kit.admit(numbers(MIN_TOKENS))
    kit.compute(sequence)
    kit.snapshots.keep_prompt(sequence)
    kit.reuse.end(sequence)
    kit.check()


def test_no_page_is_held_for_the_disk_that_live_requests_were_promised(tmp_path: Path) -> None:
    kit = Kit(tmp_path, 4)
    sequence = kit.admit(numbers(MIN_TOKENS), "a/b")
    kit.compute(sequence)
    kept = kit.reuse.end(sequence)
    assert kept is not None
    other = kit.admit(numbers(20, 500), max_tokens=60)
    kit.snapshots.keep_session("a/b", kept.ids, kept.chain)
    assert kit.worker.writes == []
    kit.reuse.end(other)
    kit.check()
    assert kit.real_worker.close(5.0)


def test_a_turn_of_a_session_is_written_from_one_page_of_new_tokens_on(kit: Kit) -> None:
    for n, n_writes in ((PAGE - 1, 0), (PAGE, 1)):
        sequence = kit.admit(numbers(n), "a/b")
        kit.compute(sequence)
        kept = kit.reuse.end(sequence)
        assert kept is not None
        kit.snapshots.keep_session("a/b", kept.ids, kept.chain)
        assert len(kit.worker.writes) == n_writes
    assert kit.worker.writes[0][4] == "a/b"
    kit.worker.writes[0][3](SnapshotResult())
    kit.snapshots.finish()
    kit.check()


def test_an_ended_session_is_removed(kit: Kit) -> None:
    kit.snapshots.end_session("a/b")
    assert kit.worker.removed == ["a/b"]


def test_sessions_of_earlier_runs_are_looked_for_now_and_then(kit: Kit) -> None:
    for now in (1.0, 2.0, FORGET_EVERY_S, 1.0 + FORGET_EVERY_S):
        kit.snapshots.forget_idle(["a/b"], now)
    assert kit.worker.idle_removals == [(60.0, ["a/b"])] * 2


def test_what_one_run_wrote_the_next_one_reads_byte_for_byte(tmp_path: Path) -> None:
    one = Kit(tmp_path)
    one.snapshots._worker = one.real_worker
    sequence = one.admit(numbers(4 * PAGE))
    one.compute(sequence)
    one.snapshots.keep_prompt(sequence)
    one.reuse.end(sequence)
    assert one.snapshots.close()
    one.check()
    assert len(files_in(tmp_path)) == 1
    next_run = Kit(tmp_path)
    next_run.snapshots._worker = next_run.real_worker
    done = wait_for(next_run)
    again = next_run.admit((*numbers(4 * PAGE), 5))
    next_run.snapshots.restore(again)
    done()
    next_run.snapshots.finish()
    assert again.request.n_computed == 4 * PAGE
    read = [bytes(next_run.page(page)) for page in again.pages.pages]
    assert read == [bytes(page) for page in pages_of(numbers(4 * PAGE))]
    next_run.reuse.end(again)
    assert next_run.snapshots.close()
    next_run.check()


def wait_for(kit: Kit) -> Callable[[], None]:
    """Returns a function that waits until the disk's thread has woken the engine."""
    woken = threading.Event()
    kit.snapshots.wake = woken.set

    def wait() -> None:
        assert woken.wait(20.0)

    return wait
