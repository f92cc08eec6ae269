"""Keys and values on disk: restored for a new prompt, written for a long new head and after a session's turn.

Owned by the engine thread; the disk is another thread's (snapshot_worker). Invariant: pages that the disk reads into
or writes from are held until it is done with them or their lease is ended; nobody waits for a disk without a limit.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sipd.engine.pass_plan import Sequence as Running
from sipd.engine.prefix_cache import Node
from sipd.engine.reuse import Reuse
from sipd.engine.snapshot_lease import Lease
from sipd.engine.snapshot_store import SnapshotStore
from sipd.engine.snapshot_worker import HANG_S, SnapshotResult, SnapshotWorker
from sipd.kernels.binding import PAGE_POSITIONS

_LOG = logging.getLogger("sipd.engine")
MIN_RESTORED = 64  # tokens: fewer are computed sooner than read
CLOSE_S = 5.0  # what writes get at a stop
MAX_READ_S = 120.0  # from admission on; then the prompt is computed, however busy the disk is
MAX_WRITE_S = 600.0  # that a write may hold its pages
FORGET_EVERY_S = 300.0  # how often sessions of earlier runs are looked for that nobody came back to


@dataclass(slots=True)
class _Restored:
    sequence: Running
    result: SnapshotResult


@dataclass(frozen=True, slots=True)
class _Reading:
    """Pages of a sequence that the disk fills, from `first_page` on."""

    lease: Lease
    first_page: int
    since: float


@dataclass(frozen=True, slots=True)
class _Writing:
    """Pages that are held for the disk."""

    nodes: tuple[Node, ...]
    since: float


class Snapshots:
    """Ties the store to the pages of one engine."""

    def __init__(  # noqa: PLR0917 - its neighbours and two settings
        self,
        store: SnapshotStore,
        reuse: Reuse,
        page: Callable[[int], memoryview],
        min_tokens: int,
        session_idle_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.wake: Callable[[], None] = lambda: None  # called from the disk's thread when something is done
        self._store = store
        self._worker = SnapshotWorker(store, clock)
        self._clock = clock
        self._reuse = reuse
        self._page = page
        self._min_tokens = min_tokens
        self._session_idle_s = session_idle_s
        self._restored: deque[_Restored] = deque()  # filled by the disk's thread
        self._written: deque[Lease] = deque()
        self._reads: dict[Running, _Reading] = {}
        self._writes: dict[Lease, _Writing] = {}
        self._next_forget = 0.0

    def restore(self, sequence: Running) -> None:
        """Has a new sequence's pages read when enough of its prompt is on disk; it sits passes out until then."""
        request = sequence.request
        if not request.uses_prefix_cache:
            return
        have = request.n_computed
        segments = self._store.find(request.prompt_ids[:-1], have)
        if not segments or whole_pages(segments[-1].n_positions) - have < MIN_RESTORED:
            return
        sequence.pages.cover(segments[-1].n_positions)
        first = segments[0].first_page
        pages = sequence.pages.pages[first : first + sum(segment.n_pages for segment in segments)]
        lease = Lease()

        def done(result: SnapshotResult) -> None:
            self._restored.append(_Restored(sequence, result))
            self.wake()

        if self._worker.read(segments, [self._page(page) for page in pages], done, lease):
            sequence.is_restoring = True
            self._reads[sequence] = _Reading(lease, first, self._clock())

    @property
    def fault(self) -> tuple[str, str] | None:
        """Path and cause when nothing can be written, or the disk hangs; any thread."""
        if self._worker.is_hung:
            return str(self._store.folder), f"the disk has not answered for {HANG_S:g} s, nothing is read either"
        return self._store.fault

    @property
    def has_news(self) -> bool:
        """Whether `finish` has something to do."""
        return bool(self._written or self._restored)

    def finish(self) -> None:
        """Takes over what the disk has done since the last call."""
        while self._written:
            self._let_go(self._written.popleft())
        while self._restored:
            restored = self._restored.popleft()
            sequence, result = restored.sequence, restored.result
            if self._reads.pop(sequence, None) is None:
                continue  # nobody waited any more
            sequence.is_restoring = False
            if result.error is not None:
                _LOG.warning("a snapshot could not be read, its tokens are computed: %s", result.error)
            self._reuse.restored(sequence, whole_pages(result.n_positions))
        if self._reads or self._writes:
            self._give_up_late()

    def abandon(self, sequence: Running) -> None:
        """The sequence has ended while its pages are being read: they are given back, and the disk's read is void."""
        self._reads.pop(sequence).lease.end()
        sequence.is_restoring = False
        self._reuse.release(sequence)

    def _give_up_late(self) -> None:
        """Takes pages back that the disk has had for too long; what was to be read into them is computed."""
        now, is_hung = self._clock(), self._worker.is_hung
        for sequence, reading in list(self._reads.items()):
            if is_hung or now - reading.since >= MAX_READ_S:
                _LOG.warning("the snapshot disk is late: %d tokens are computed", len(sequence.request.prompt_ids))
                del self._reads[sequence]
                reading.lease.end()
                sequence.is_restoring = False
                self._reuse.restored(sequence, reading.first_page * PAGE_POSITIONS)
        for lease, writing in list(self._writes.items()):
            if is_hung or now - writing.since >= MAX_WRITE_S:
                _LOG.warning("the snapshot disk is late: %d pages are not written", len(writing.nodes))
                lease.end()
                self._let_go(lease)

    def _let_go(self, lease: Lease) -> None:
        """Lets go of the pages of a write, unless that was done before."""
        writing = self._writes.pop(lease, None)
        if writing is not None:
            assert self._reuse.cache is not None
            self._reuse.cache.let_go(writing.nodes)

    def keep_prompt(self, sequence: Running) -> None:
        """Writes the head of a prompt that was just computed, when enough of it is new to the disk."""
        request = sequence.request
        n_pages = min(len(request.prompt_ids) // PAGE_POSITIONS, len(sequence.chain))
        ids = request.prompt_ids[: n_pages * PAGE_POSITIONS]
        if not request.uses_prefix_cache or request.session or len(ids) < self._min_tokens:
            return  # a session's turn is written at its end, and goes with the session
        covered = self._store.covered(ids)
        if len(ids) - covered >= self._min_tokens:
            self._write(ids, covered, sequence.chain[:n_pages], "")

    def keep_session(self, key: str, ids: Sequence[int], chain: Sequence[Node]) -> None:
        """Writes what a session's turn added; `chain` are the pages of `ids`, all held or idle."""
        covered = self._store.covered(ids, key)
        if len(ids) - covered >= PAGE_POSITIONS:
            self._write(ids, covered, chain, key)

    def end_session(self, key: str) -> None:
        """Removes what only this session needs."""
        self._worker.remove_owner(key)

    def forget_idle(self, live: Sequence[str], now: float) -> None:
        """Now and then removes sessions of earlier runs that nobody came back to; `now` in seconds."""
        if now >= self._next_forget:
            self._next_forget = now + FORGET_EVERY_S
            self._worker.remove_idle(self._session_idle_s, live)

    def _write(self, ids: Sequence[int], covered: int, chain: Sequence[Node], owner: str) -> None:
        """Queues a write; its pages and those before them are held until it is done.

        Writes hold half of the pool together at most, so that a slow disk leaves pages to requests; one may hold more.
        """
        cache = self._reuse.cache
        assert cache is not None
        n_held = sum(len(writing.nodes) for writing in self._writes.values())
        if n_held and n_held + len(chain) > self._reuse.pool.n_pages // 2:
            return
        if not self._reuse.pool.promise(cache.n_idle_of(chain)):
            return
        held, lease = tuple(chain), Lease()
        for node in held:
            cache.hold(node)

        def done(_result: SnapshotResult) -> None:
            self._written.append(lease)
            self.wake()

        first = covered // PAGE_POSITIONS
        if self._worker.write(ids, first, [self._page(node.page) for node in held[first:]], done, owner, lease):
            self._writes[lease] = _Writing(held, self._clock())
        else:
            cache.let_go(held)

    def close(self) -> bool:
        """Ends the disk's thread; False when it hangs in the disk."""
        is_closed = self._worker.close(CLOSE_S)
        self.finish()
        for lease in list(self._writes):
            lease.end()
            self._let_go(lease)
        return is_closed


def whole_pages(n_positions: int) -> int:
    """Positions of whole pages: parts of a page would tell anybody how far a guessed prompt is right."""
    return n_positions // PAGE_POSITIONS * PAGE_POSITIONS
