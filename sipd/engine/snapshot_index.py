"""Which segments there are, in memory: the chain that extends a sequence, and what may go first.

Invariant: segments are matched by comparing the token ids themselves. Not thread safe; the store's lock guards it.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sipd.engine.kv_cache import pages_for
from sipd.kernels.binding import PAGE_POSITIONS

MAX_SEGMENTS = 2048  # a look-up walks all of them: below 1 ms
_SEGMENT_BYTES = 1024  # of a stored segment beside its ids, rounded up


@dataclass(slots=True, eq=False)
class StoredSegment:
    """A file of the store."""

    path: Path
    first_page: int
    ids: bytes  # u32 little-endian, of every position from 0 to the end of its last page
    owner: bytes
    n_bytes: int  # of the file
    last_used: float  # time.time()

    @property
    def n_positions(self) -> int:
        """Positions from 0 to its end."""
        return len(self.ids) // 4

    @property
    def memory_bytes(self) -> int:
        """What knowing it costs."""
        return len(self.ids) + _SEGMENT_BYTES

    def needs(self, other: StoredSegment) -> bool:
        """Whether `other` holds the pages just before this one's."""
        if other.first_page >= self.first_page:
            return False
        return other.ids.startswith(self.ids[: 4 * self.first_page * PAGE_POSITIONS])

    def covers(self, other: StoredSegment) -> bool:
        """Whether all pages of `other` are in this one too."""
        return self.first_page <= other.first_page and self.ids.startswith(other.ids)


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of a stored segment that a sequence can use: whole pages to read, in the sequence's numbering."""

    stored: StoredSegment
    first_page: int
    n_pages: int
    n_positions: int  # positions from 0 that are there once these pages are


class SnapshotIndex:
    """The segments of one store."""

    def __init__(self) -> None:
        self._segments: dict[Path, StoredSegment] = {}

    def __iter__(self) -> Iterator[StoredSegment]:
        return iter(self._segments.values())

    def __contains__(self, path: Path) -> bool:
        return path in self._segments

    def __len__(self) -> int:
        return len(self._segments)

    def add(self, segment: StoredSegment) -> None:
        """Adds a segment in place of one of the same path."""
        self._segments[segment.path] = segment

    def discard(self, segment: StoredSegment) -> None:
        """Takes a segment out; unknown ones are ignored."""
        self._segments.pop(segment.path, None)

    @property
    def n_bytes(self) -> int:
        """Bytes of all files."""
        return sum(segment.n_bytes for segment in self._segments.values())

    @property
    def memory_bytes(self) -> int:
        """What the index takes in memory."""
        return sum(segment.memory_bytes for segment in self._segments.values())

    def chain(self, ids: bytes, have_positions: int, owners: Container[bytes] | None = None) -> list[Segment]:
        """Returns the fewest segments that extend `have_positions` of `ids` the furthest; `owners` restricts whose.

        Each begins where the one before it ends; the first begins in the page of position `have_positions`, which it
        holds from the page's beginning.
        """
        found: list[Segment] = []
        reach = have_positions
        while best := self._furthest(ids, reach, owners):
            common, segment = best
            first_page = reach // PAGE_POSITIONS
            if found:
                found[-1] = _cut(found[-1], first_page)
            found.append(Segment(segment, first_page, pages_for(common) - first_page, common))
            reach = common
        return found

    def _furthest(self, ids: bytes, reach: int, owners: Container[bytes] | None) -> tuple[int, StoredSegment] | None:
        """The segment that begins at or before `reach` and agrees with `ids` beyond it for longest, and up to where."""
        wanted = ids[: 4 * (reach + 1)]
        if len(wanted) <= 4 * reach:
            return None
        fitting = [
            (common_positions(segment.ids, ids), segment)
            for segment in self._segments.values()
            if segment.first_page * PAGE_POSITIONS <= reach
            and (owners is None or segment.owner in owners)
            and segment.ids.startswith(wanted)
        ]
        return max(fitting, key=lambda each: each[0], default=None)


def oldest_leaf(segments: Sequence[StoredSegment], newcomer: StoredSegment | None) -> StoredSegment | None:
    """Returns the least recently used of the segments that no other one, nor `newcomer`, continues."""
    others = segments if newcomer is None else [*segments, newcomer]
    for segment in sorted(segments, key=lambda each: (each.last_used, -each.first_page)):
        if not any(other.needs(segment) for other in others):
            return segment
    return None


def packed_ids(ids: Sequence[int]) -> bytes:
    """Returns ids as u32, little-endian."""
    packed = array("I", ids)
    assert packed.itemsize == 4
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def common_positions(one: bytes, other: bytes) -> int:
    """Returns how many ids two sequences of u32 have in common from their beginning on."""
    low, high = 0, min(len(one), len(other)) // 4
    while low < high:
        middle = (low + high + 1) // 2
        if one[4 * low : 4 * middle] == other[4 * low : 4 * middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _cut(segment: Segment, end_page: int) -> Segment:
    """Returns a segment that leaves the pages from `end_page` on to the next one."""
    end = min(segment.n_positions, end_page * PAGE_POSITIONS)
    return replace(segment, n_pages=end_page - segment.first_page, n_positions=end)
