"""KV pages on disk: runs of pages, found again by the token ids they belong to, under one cap on their bytes.

The files hold what users wrote, in the form of token ids; they are made with mode 0600 in a folder of mode 0700, under
systemd in the daemon's CacheDirectory. Invariant: whatever the disk does, the worst that follows is that pages are
computed again: nothing here raises for a full, read-only, foreign or damaged folder, and no page is handed out whose
ids and checksum are not right.

Thread safe. Looking up takes no disk access; reading, writing and removing block, and belong on the worker's thread.
Several daemons may share a folder: files get their names when whole, and one that vanishes is a miss; the cap then
counts the files of all of them, whatever their model, and the least recently used go first.

What it costs in memory: 4 bytes per position of every segment, counted from position 0, and 1 KiB per segment, under
`max_index_bytes`: 100 heads of 25,000 tokens are 10 MB. What does not fit is removed from disk as if the cap were
reached.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from sipd.engine.kv_cache import pages_for
from sipd.engine.snapshot_file import (
    COMMON,
    MAX_POSITIONS,
    PART_SUFFIX,
    SUFFIX,
    ModelKey,
    SnapshotHead,
    file_bytes,
    free_bytes,
    no_room,
    read_head,
    read_pages,
    remove,
    remove_if_left_over,
    write_file,
)
from sipd.engine.snapshot_index import MAX_SEGMENTS, Segment, SnapshotIndex, StoredSegment, oldest_leaf, packed_ids
from sipd.engine.snapshot_lease import Hold
from sipd.errors import StorageFault

_LOG = logging.getLogger(__name__)

RETRY_S = 60.0  # after a failed write
DEFAULT_INDEX_BYTES = 10 << 20


@dataclass(frozen=True, slots=True)
class _Stranger:
    """A file in the folder that this store does not know: of another model or of another daemon."""

    path: Path
    n_bytes: int
    last_used: float


class SnapshotStore:
    """The snapshots of one model in `folder`, which hold `cap_bytes` at most together with those of other models."""

    def __init__(
        self,
        folder: Path,
        cap_bytes: int,
        key: ModelKey,
        max_index_bytes: int = DEFAULT_INDEX_BYTES,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Reads the heads of all files of the model; blocks for that (100 heads of 25,000 tokens: 10 MB)."""
        self.folder = folder
        self.cap_bytes = cap_bytes
        self.key = key
        self._own_folder = folder / key.folder_name()
        self._max_index_bytes = max_index_bytes
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._index = SnapshotIndex()
        self._off_until = 0.0
        self._fault: tuple[str, str] | None = None
        self._has_told_size = False
        try:
            self._make_folder()
        except OSError as error:
            self._turn_off(error)
        self._load()

    @property
    def n_bytes(self) -> int:
        """Bytes of the files known."""
        with self._lock:
            return self._index.n_bytes

    @property
    def n_segments(self) -> int:
        """Files known."""
        with self._lock:
            return len(self._index)

    @property
    def index_bytes(self) -> int:
        """Memory that the index takes."""
        with self._lock:
            return self._index.memory_bytes

    @property
    def fault(self) -> tuple[str, str] | None:
        """Path and cause of the failure that keeps writing off; None again once a write succeeds."""
        return self._fault

    def find(self, ids: Sequence[int], have_positions: int = 0) -> list[Segment]:
        """Returns what extends the first `have_positions` of `ids`, whosever it is, the furthest; may be empty.

        The segments' pages follow each other. The first begins in the page that holds position `have_positions`, and
        holds that page from its beginning, so a page that is there in part is read again.
        """
        now = time.time()
        with self._lock:
            found = self._index.chain(packed_ids(ids), have_positions)
            for segment in found:
                # the head of someone's session serving others does not prolong the session
                if segment.stored.owner == COMMON or segment.n_positions == segment.stored.n_positions:
                    segment.stored.last_used = now
        return found

    def covered(self, ids: Sequence[int], owner: str = "") -> int:
        """Returns how many positions of `ids` are on disk for as long as `owner`'s are: in its own or common segments.

        The next segment to write begins at page `covered(ids, owner) // PAGE_POSITIONS`.
        """
        with self._lock:
            return self._covered(packed_ids(ids), owner)

    def read(self, segment: Segment, into: Sequence[memoryview], hold: Hold = nullcontext) -> None:
        """Fills `into`, one view for each page of the segment; blocks, but not while it is in a `hold`.

        Raises StorageFault, and the file is then gone, or what `hold` raises; `into` is then undefined.
        """
        assert len(into) == segment.n_pages, (len(into), segment.n_pages)
        assert all(page.nbytes == self.key.page_bytes for page in into)
        stored = segment.stored
        try:
            read_pages(stored.path, self.key, stored.ids, segment.first_page, into, hold)
        except StorageFault as fault:
            with self._lock:
                self._index.discard(stored)
            if not isinstance(fault.__cause__, FileNotFoundError):
                _discard(stored.path, fault)
            raise

    def write(  # noqa: PLR0917 - what a segment is made of
        self,
        ids: Sequence[int],
        first_page: int,
        pages: Sequence[memoryview],
        owner: str = "",
        between: Callable[[], None] = lambda: None,
        hold: Hold = nullcontext,
    ) -> int:
        """Keeps the pages from `first_page` to the end of `ids`, the last of which may be partial; blocks.

        Returns the file's bytes, or 0 when nothing was written: it is there already, it is larger than the cap or the
        index, or writing is off after a failure. `owner` names a session that ends with `remove_owner`; what has none
        goes when the cap is reached. `between` is called after every few MiB and may raise to give up; `pages` are read
        in `hold` alone, which may raise too.
        """
        assert len(pages) == pages_for(len(ids)) - first_page > 0, (len(pages), len(ids), first_page)
        assert all(page.nbytes == self.key.page_bytes for page in pages)
        packed = packed_ids(ids)
        tag = _tag(owner)
        path = (
            self._own_folder
            / f"{hashlib.sha256(tag + first_page.to_bytes(4, 'little') + packed).hexdigest()[:32]}{SUFFIX}"
        )
        newcomer = StoredSegment(path, first_page, packed, tag, file_bytes(self.key, len(ids), first_page), time.time())
        if len(ids) > MAX_POSITIONS or self._monotonic() < self._off_until:
            return 0
        with self._lock:
            if any(each.owner in (COMMON, tag) and each.covers(newcomer) for each in self._index):
                return 0
        try:
            self._make_folder()
            if not self._make_room(newcomer):
                return 0
            write_file(path, self.key, SnapshotHead(first_page, packed, (), tag), pages, between, hold)
        except OSError as error:
            self._turn_off(error)
            return 0
        self._fault = None
        with self._lock:
            covered = [each for each in self._index if each.owner == tag and newcomer.covers(each)]
            self._index.add(newcomer)
        self._remove(covered)
        return newcomer.n_bytes

    def remove_owner(self, owner: str) -> int:
        """Removes the segments of a session that has ended, and returns how many; blocks for the removals."""
        tag = _tag(owner)
        assert tag != COMMON, "what is common has no owner"
        return self._remove([each for each in self._index_copy() if each.owner == tag])

    def remove_idle(self, idle_s: float, live_owners: Collection[str] = ()) -> int:
        """Removes the segments of owners that have used none of theirs for `idle_s`: sessions from before a restart.

        `live_owners` are spared: what they use is in memory. Returns how many were removed; blocks for the removals.
        """
        used: dict[bytes, float] = {}
        spared = {COMMON, *map(_tag, live_owners)}
        segments = [each for each in self._index_copy() if each.owner not in spared]
        for each in segments:
            used[each.owner] = max(each.last_used, used.get(each.owner, 0.0))
        limit = time.time() - idle_s
        return self._remove([each for each in segments if used[each.owner] < limit])

    def _index_copy(self) -> list[StoredSegment]:
        with self._lock:
            return list(self._index)

    def _covered(self, ids: bytes, owner: str) -> int:
        chain = self._index.chain(ids, 0, (COMMON, _tag(owner)))
        return chain[-1].n_positions if chain else 0

    def _make_folder(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._own_folder.mkdir(mode=0o700, exist_ok=True)

    def _load(self) -> None:
        """Takes in what is whole and of this model, the last used first, and removes the rest."""
        memory_bytes = 0
        for stranger in reversed(self._strangers(self._own_folder)):
            try:
                head = read_head(stranger.path, self.key)
            except StorageFault as fault:
                if not isinstance(fault.__cause__, FileNotFoundError):
                    _discard(stranger.path, fault)
                continue
            used = min(stranger.last_used, time.time())  # a board without a clock may have come from the future
            known = StoredSegment(stranger.path, head.first_page, head.ids, head.owner, head.n_bytes, used)
            memory_bytes += known.memory_bytes
            if memory_bytes > self._max_index_bytes:
                remove(known.path)
            else:
                self._index.add(known)
        for folder in self._model_folders():
            for path in _listed(folder):
                if path.suffix == PART_SUFFIX:
                    remove_if_left_over(path)
        self._make_room(None)

    def _model_folders(self) -> list[Path]:
        return [path for path in _listed(self.folder) if _is_model_folder(path)]

    def _strangers(self, *folders: Path) -> list[_Stranger]:
        """The files that the index does not hold, the least recently used first."""
        found = []
        for folder in folders:
            for path in _listed(folder):
                if path.suffix == SUFFIX and path not in self._index:
                    with suppress(OSError):
                        status = path.lstat()
                        found.append(_Stranger(path, status.st_size, status.st_mtime))
        return sorted(found, key=lambda each: each.last_used)

    def _make_room(self, newcomer: StoredSegment | None) -> bool:
        """Removes what was not used for longest until `newcomer` fits; False, with nothing removed, if it cannot.

        Raises OSError, with nothing removed, when it is the disk that has no room for it.
        """
        if newcomer is not None and newcomer.n_bytes > self.cap_bytes:
            self._tell_size(newcomer.n_bytes)
            return False
        strangers = self._strangers(*self._model_folders())
        left = self._index_copy()
        going: list[StoredSegment | _Stranger] = []
        kept = [*left, newcomer] if newcomer else left
        n_bytes = sum(each.n_bytes for each in kept) + sum(each.n_bytes for each in strangers)
        cap_bytes = self.cap_bytes
        if newcomer is not None:  # a disk smaller than the cap is a cap too
            cap_bytes = min(cap_bytes, n_bytes - newcomer.n_bytes + free_bytes(self._own_folder))
        memory_bytes = sum(each.memory_bytes for each in kept)
        n_most = MAX_SEGMENTS - len(kept) + len(left)
        while (is_known_full := memory_bytes > self._max_index_bytes or len(left) > n_most) or n_bytes > cap_bytes:
            leaf = oldest_leaf(left, newcomer)
            if strangers and not is_known_full and (leaf is None or strangers[0].last_used <= leaf.last_used):
                going.append(strangers.pop(0))
            elif leaf is not None:
                going.append(leaf)
                left.remove(leaf)
                memory_bytes -= leaf.memory_bytes
            elif newcomer is None or is_known_full or n_bytes > self.cap_bytes:
                return False
            else:
                raise no_room(self._own_folder, newcomer.n_bytes)
            n_bytes -= going[-1].n_bytes
        for each in going:
            if isinstance(each, _Stranger):
                remove(each.path)
        self._remove([each for each in going if isinstance(each, StoredSegment)])
        return True

    def _remove(self, segments: Sequence[StoredSegment]) -> int:
        with self._lock:
            for each in segments:
                self._index.discard(each)
        for each in segments:
            remove(each.path)
        return len(segments)

    def _turn_off(self, error: OSError) -> None:
        """Stops writing for a while; the same fault is told once until a write succeeds."""
        self._off_until = self._monotonic() + RETRY_S
        fault = str(error.filename or self._own_folder), error.strerror or str(error)
        if fault != self._fault:
            _LOG.warning("%s: %s: no snapshots are written; tried again every %g s", *fault, RETRY_S)
        self._fault = fault

    def _tell_size(self, n_bytes: int) -> None:
        if not self._has_told_size:
            self._has_told_size = True
            _LOG.info("a snapshot of %d bytes is not written: snapshot_bytes is %d", n_bytes, self.cap_bytes)


def _tag(owner: str) -> bytes:
    """Returns what stands for an owner in a file: a digest, since names of sessions are nobody's business."""
    return hashlib.sha256(owner.encode()).digest() if owner else COMMON


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _is_model_folder(path: Path) -> bool:
    """Whether a folder has the name of a model's snapshots; links are not followed."""
    return len(path.name) == 32 and not set(path.name) - set("0123456789abcdef") and not path.is_symlink()


def _discard(path: Path, fault: StorageFault) -> None:
    what = "removed" if remove(path) else "ignored"
    _LOG.warning("snapshot %s: %s", what, fault)
