"""Pages whose content says which positions of which ids they hold, as real ones do."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from sipd.engine.kv_cache import pages_for
from sipd.engine.snapshot_file import ModelKey
from sipd.engine.snapshot_index import Segment
from sipd.engine.snapshot_store import SnapshotStore
from sipd.kernels.binding import PAGE_POSITIONS

PAGE_BYTES = 640
KEY = ModelKey(b"\x01" * 32, 3, "f16 k,v", PAGE_BYTES)
CAP_BYTES = 1 << 20
HEAD = list(range(1000, 1100))  # 3 whole pages and 4 positions
LONGER = [*HEAD, *range(5000, 5060)]  # 5 whole pages
FILE_BYTES = 4096 + 4 * 640  # of HEAD


def pages_of(ids: Sequence[int], first_page: int = 0) -> list[memoryview]:
    """Returns the pages from `first_page` to the end of `ids`; each depends on all ids up to its end."""
    return [memoryview(_page(ids[: (page + 1) * PAGE_POSITIONS])) for page in range(first_page, pages_for(len(ids)))]


def _page(ids: Sequence[int]) -> bytearray:
    seed = hashlib.sha256(repr(list(ids)).encode()).digest()
    return bytearray(seed * (PAGE_BYTES // 32))


def empty_pages(n_pages: int) -> list[memoryview]:
    return [memoryview(bytearray(PAGE_BYTES)) for _ in range(n_pages)]


def open_store(folder: Path, cap_bytes: int = CAP_BYTES, key: ModelKey = KEY) -> SnapshotStore:
    return SnapshotStore(folder, cap_bytes, key)


def write(store: SnapshotStore, ids: Sequence[int], first_page: int = 0, owner: str = "") -> int:
    return store.write(ids, first_page, pages_of(ids, first_page), owner)


def spans(found: Sequence[Segment]) -> list[tuple[int, int, int]]:
    """Returns first page, pages and end position of each segment."""
    return [(each.first_page, each.n_pages, each.n_positions) for each in found]


def restored(store: SnapshotStore, found: Sequence[Segment]) -> list[bytes]:
    """Returns the pages of a chain as they come from disk."""
    pages: list[bytes] = []
    for segment in found:
        into = empty_pages(segment.n_pages)
        store.read(segment, into)
        pages += map(bytes, into)
    return pages


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() or path.is_symlink())
