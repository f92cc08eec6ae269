"""The one thread that reads and writes snapshots, so that neither the engine nor the event loop waits for a disk.

Invariant: every job that was taken is answered exactly once, on the worker's thread, whatever happens; faults are
values of the answer and never exceptions of the caller. Reads go before writes, also in the middle of a write. While
the disk hangs, no job but a removal is taken; those that were are answered when it moves again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sipd.engine.snapshot_index import Segment
from sipd.engine.snapshot_lease import Lease, LeaseEndedError
from sipd.engine.snapshot_store import SnapshotStore
from sipd.errors import Cancelled, Draining, EngineFault, SipdError, StorageFault
from sipd.kernels.binding import PAGE_POSITIONS

_LOG = logging.getLogger(__name__)

MAX_READS = 64
MAX_WRITES = 8  # each holds on to its pages until it is done
MAX_REMOVALS = 1000  # that wait; what is not removed now goes when it has been idle for long
HANG_S = 20.0  # without a sign of life the disk hangs; cards that tidy up stand still for seconds
_LAST_PIECE_S = 2.0  # a piece under way is finished: 4 MiB on a slow card


@dataclass(frozen=True, slots=True)
class SnapshotResult:
    """What became of a job."""

    n_bytes: int = 0  # read into whole pages, or written: 0 for a write that was not wanted
    n_positions: int = 0  # of a read: positions from 0 that are there; the pages wanted beyond them are undefined
    seconds: float = 0.0  # of work; the wait in the queue is not counted
    error: SipdError | None = None


Done = Callable[[SnapshotResult], None]


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    run: Callable[[], SnapshotResult]
    done: Done
    is_removal: bool = False  # done at a stop too: what is not removed stays on disk


class _GivenUpError(Exception):
    """The daemon is stopping and cannot wait for the rest of a write."""


class SnapshotWorker:
    """Runs the store's slow calls. The methods may be called from any thread, and all but `close` return at once."""

    def __init__(self, store: SnapshotStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._moved_at: float | None = None  # the last sign of life; None: there is nothing to do
        self._wake = threading.Condition()
        self._reads: deque[_Job] = deque()
        self._writes: deque[_Job] = deque()
        self._deadline: float | None = None  # time.monotonic(); set once, by `close`
        self._thread = threading.Thread(target=self._run, name="sipd-snapshots", daemon=True)
        self._thread.start()

    @property
    def is_hung(self) -> bool:
        """Whether a call to the disk has not come back for HANG_S; any thread."""
        moved_at = self._moved_at
        return moved_at is not None and self._clock() - moved_at >= HANG_S

    def read(
        self, segments: Sequence[Segment], pages: Sequence[memoryview], done: Done, lease: Lease | None = None
    ) -> bool:
        """Reads the chain that `find` gave into `pages`, one view for each page in order; False: not taken.

        `pages` must stay the caller's own until `done` is called or `lease` is ended. After a fault the segments before
        the bad one are there, down to the first position of its first page: fewer than before, if that page was there
        in part.
        """
        assert segments
        assert len(pages) == sum(segment.n_pages for segment in segments)
        held = lease or Lease()
        return self._add(self._reads, MAX_READS, _Job(lambda: self._read(segments, pages, held), done))

    def write(  # noqa: PLR0917 - a segment and what becomes of it
        self,
        ids: Sequence[int],
        first_page: int,
        pages: Sequence[memoryview],
        done: Done,
        owner: str = "",
        lease: Lease | None = None,
    ) -> bool:
        """Writes a segment as `SnapshotStore.write` does; False: not taken.

        Nothing may write to `pages` until `done` is called or `lease` is ended.
        """
        held = lease or Lease()

        def run() -> SnapshotResult:
            with self._hold(held):  # else others would make room for a file that is not written
                pass
            n_bytes = self._store.write(ids, first_page, pages, owner, self._between, lambda: self._hold(held))
            return SnapshotResult(n_bytes)

        return self._add(self._writes, MAX_WRITES, _Job(run, done))

    def remove_owner(self, owner: str) -> bool:
        """Removes an ended session's segments, those that still wait to be written too; False: not taken."""
        return self._add_removal(lambda: self._store.remove_owner(owner))

    def remove_idle(self, idle_s: float, live_owners: Collection[str] = ()) -> bool:
        """Removes sessions of earlier runs as `SnapshotStore.remove_idle` does; False: not taken."""
        owners = tuple(live_owners)
        return self._add_removal(lambda: self._store.remove_idle(idle_s, owners))

    def close(self, timeout_s: float) -> bool:
        """Takes no more jobs, answers reads with Draining, and gives writes `timeout_s`; what is left gets Draining.

        Returns whether the thread has ended: False when the disk hangs.
        """
        with self._wake:
            self._deadline = min(time.monotonic() + timeout_s, self._deadline or float("inf"))
            self._wake.notify_all()
        self._thread.join(timeout_s + _LAST_PIECE_S)
        return not self._thread.is_alive()

    def _add_removal(self, remove: Callable[[], int]) -> bool:
        def run() -> SnapshotResult:
            remove()
            return SnapshotResult()

        return self._add(self._writes, MAX_REMOVALS, _Job(run, _ignore, is_removal=True))

    def _add(self, jobs: deque[_Job], n_most: int, job: _Job) -> bool:
        with self._wake:
            if self._deadline is not None or len(jobs) >= n_most or (self.is_hung and not job.is_removal):
                return False
            jobs.append(job)
            self._wake.notify_all()
            return True

    def _run(self) -> None:
        while self._serve_one():
            pass

    def _serve_one(self) -> bool:
        """Waits for a job and answers it; False when there will be none."""
        with self._wake:
            self._moved_at = None
            while not (self._reads or self._writes or self._deadline is not None):
                self._wake.wait()
            if not (self._reads or self._writes):
                return False
            is_read = bool(self._reads)
            job = (self._reads or self._writes).popleft()
            is_late = self._deadline is not None and (is_read or time.monotonic() >= self._deadline)
            is_late &= not job.is_removal
        self._answer(job, is_late)
        return True

    @contextmanager
    def _hold(self, lease: Lease) -> Iterator[None]:
        """Holds a lease, which is a sign of life."""
        self._moved_at = self._clock()
        with lease.hold():
            yield

    def _between(self) -> None:
        """Lets reads go first in the middle of a write, and ends one that takes too long at a stop."""
        while True:
            self._moved_at = self._clock()
            with self._wake:
                if self._deadline is not None and time.monotonic() >= self._deadline:
                    raise _GivenUpError
                if not self._reads:
                    return
                job = self._reads.popleft()
                is_late = self._deadline is not None
            self._answer(job, is_late)

    def _read(self, segments: Sequence[Segment], pages: Sequence[memoryview], lease: Lease) -> SnapshotResult:
        n_pages = 0
        for segment in segments:
            try:
                into = pages[n_pages : n_pages + segment.n_pages]
                self._store.read(segment, into, lambda: self._hold(lease))
            except StorageFault as fault:
                return SnapshotResult(
                    n_pages * self._store.key.page_bytes, segment.first_page * PAGE_POSITIONS, 0, fault
                )
            n_pages += segment.n_pages
        return SnapshotResult(n_pages * self._store.key.page_bytes, segments[-1].n_positions)

    def _answer(self, job: _Job, is_late: bool) -> None:
        began = time.monotonic()
        self._moved_at = self._clock()
        try:
            result = _late() if is_late else job.run()
        except _GivenUpError:
            result = _late()
        except LeaseEndedError:
            result = SnapshotResult(error=Cancelled("nobody waits for the snapshot any more"))
        except Exception as error:  # noqa: BLE001 - the guard that keeps one job's fault from the thread
            _LOG.exception("snapshot job failed")
            result = SnapshotResult(error=EngineFault(f"the snapshot failed: {type(error).__name__}: {error}"))
        try:
            job.done(SnapshotResult(result.n_bytes, result.n_positions, time.monotonic() - began, result.error))
        except Exception:  # noqa: BLE001 - likewise
            _LOG.exception("the answer to a snapshot job failed")


def _late() -> SnapshotResult:
    return SnapshotResult(error=Draining("the daemon is stopping"))


def _ignore(result: SnapshotResult) -> None:
    """Nobody waits for a removal."""
