"""Pages and the disk: what is read for a prompt, what is written, and who holds pages until the disk is done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sipd.engine.request import Request
from sipd.engine.sampling import SamplingOptions
from sipd.engine.snapshot_lease import Lease, LeaseEndedError
from sipd.engine.snapshot_worker import SnapshotResult
from sipd.engine.snapshots import FORGET_EVERY_S, MAX_READ_S, MAX_WRITE_S, MIN_RESTORED
from sipd.errors import StorageFault
from sipd.kernels.binding import PAGE_POSITIONS as PAGE
from tests.unit.engine.fake_executor import Sink
from tests.unit.engine.snapshot_kit import MIN_TOKENS, Kit
from tests.unit.engine.snapshot_pages import files_in, pages_of, write


def numbers(n: int, first: int = 0) -> tuple[int, ...]:
    return tuple(range(first, first + n))


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
def test_pages_of_a_request_that_ended_are_taken_from_the_disk_at_once(kit: Kit, error: StorageFault | None) -> None:
    write(kit.store, numbers(100))
    sequence = kit.admit(numbers(100))
    kit.snapshots.restore(sequence)
    kit.snapshots.abandon(sequence)
    assert is_ended(kit.worker.leases[0])
    kit.check()
    kit.worker.reads[0][1](SnapshotResult(n_positions=99, error=error))
    kit.snapshots.finish()
    assert sequence.request.n_computed == 0
    kit.check()


def is_ended(lease: Lease) -> bool:
    try:
        with lease.hold():
            return False
    except LeaseEndedError:
        return True


@pytest.mark.parametrize(("is_hung", "seconds"), [(True, 0.0), (False, MAX_READ_S)], ids=["hung", "slow"])
def test_a_prompt_that_the_disk_is_late_with_is_computed(kit: Kit, seconds: float, *, is_hung: bool) -> None:
    write(kit.store, numbers(PAGE + 100))
    kit.compute(first := kit.admit(numbers(PAGE)))
    sequence = kit.admit(numbers(PAGE + 100))
    kit.snapshots.restore(sequence)
    kit.snapshots.finish()
    assert sequence.is_restoring
    kit.worker.is_hung, kit.now = is_hung, kit.now + seconds
    kit.snapshots.finish()
    assert (sequence.is_restoring, sequence.request.n_computed) == (False, PAGE)
    assert is_ended(kit.worker.leases[0])
    kit.worker.reads[0][1](SnapshotResult(n_positions=PAGE + 99))
    kit.snapshots.finish()
    assert (sequence.request.n_computed, sequence.request.usage.restored_tokens) == (PAGE, 0), "too late"
    kit.reuse.end(sequence)
    kit.reuse.end(first)
    kit.check()


@pytest.mark.parametrize(("is_hung", "seconds"), [(True, 0.0), (False, MAX_WRITE_S)], ids=["hung", "slow"])
def test_a_writer_that_is_late_loses_its_pages(kit: Kit, seconds: float, *, is_hung: bool) -> None:
    sequence = kit.admit(numbers(MIN_TOKENS))
    kit.compute(sequence)
    kit.snapshots.keep_prompt(sequence)
    kit.reuse.end(sequence)
    kit.snapshots.finish()
    assert kit.pool.n_promised == 3
    kit.worker.is_hung, kit.now = is_hung, kit.now + seconds
    kit.snapshots.finish()
    assert is_ended(kit.worker.leases[0])
    kit.check()
    kit.worker.writes[0][3](SnapshotResult())
    kit.snapshots.finish()
    kit.check()


def test_a_disk_that_hangs_is_a_fault_that_names_its_folder_until_it_moves(kit: Kit, tmp_path: Path) -> None:
    assert kit.snapshots.fault is None
    kit.worker.is_hung = True
    assert kit.snapshots.fault == (str(tmp_path), "the disk has not answered for 20 s, nothing is read either")
    kit.worker.is_hung = False
    assert kit.snapshots.fault is None


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
