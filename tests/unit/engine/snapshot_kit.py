"""Snapshots over a folder and a pool of bytes, with a worker that does nothing until a test says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from sipd.engine.kv_cache import PagePool
from sipd.engine.pass_plan import Sequence as Running
from sipd.engine.prefix_cache import PrefixCache
from sipd.engine.request import Request
from sipd.engine.reuse import Reuse
from sipd.engine.sampling import SamplingOptions
from sipd.engine.snapshot_index import Segment
from sipd.engine.snapshot_lease import Lease
from sipd.engine.snapshot_worker import Done, SnapshotResult, SnapshotWorker
from sipd.engine.snapshots import Snapshots
from sipd.errors import EngineFault
from sipd.kernels.binding import PAGE_POSITIONS as PAGE
from tests.unit.engine.fake_executor import Sink
from tests.unit.engine.snapshot_pages import PAGE_BYTES, open_store, pages_of

MIN_TOKENS = 3 * PAGE


@dataclass
class FakeWorker:
    """Takes jobs and does nothing until a test says how they ended."""

    is_full: bool = False
    is_hung: bool = False
    leases: list[Lease] = field(default_factory=list)
    reads: list[tuple[list[Segment], Done]] = field(default_factory=list)
    writes: list[tuple[tuple[int, ...], int, list[memoryview], Done, str]] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    idle_removals: list[tuple[float, list[str]]] = field(default_factory=list)

    def read(self, segments: Sequence[Segment], pages: Sequence[memoryview], done: Done, lease: Lease) -> bool:
        if not self.is_full:
            self.leases.append(lease)
            assert len(pages) == sum(segment.n_pages for segment in segments)
            self.reads.append((list(segments), done))
        return not self.is_full

    def write(  # noqa: PLR0917 - as the worker's
        self, ids: Sequence[int], first_page: int, pages: Sequence[memoryview], done: Done, owner: str, lease: Lease
    ) -> bool:
        if not self.is_full:
            self.leases.append(lease)
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
        self.now = 0.0
        self.snapshots = Snapshots(self.store, self.reuse, self.page, MIN_TOKENS, 60.0, lambda: self.now)
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
