"""The plan: every tile that a pass consumes, in order, and the reads that bring them.

Invariant: the tiles of a matrix cover its rows once, in ascending order; an extent's tiles are neighbours in the plan
and in the file; extents are in the order in which the pass first needs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sipd.weights.tensor_table import Tensor

PANEL_ROWS = 16  # tiles hold whole panels of the kernels, but for the last rows of a matrix
TILE_BYTES = 1 << 20
PLACE = 4096  # bytes keep their file offset modulo this in memory: the largest logical block of SD, USB and NVMe
MERGE_GAP = 4096  # bytes between neighbours that are cheaper to read than to skip
WINDOW = 24  # tiles looked at ahead when merging reads


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows [row0, row0 + n_rows) of matrix number `matrix`; `offset` counts from its extent's first byte."""

    matrix: int
    row0: int
    n_rows: int
    extent: int
    offset: int


@dataclass(frozen=True, slots=True)
class Extent:
    """One read: `length` bytes at `offset` of a file; `weight_bytes` of them belong to tiles."""

    file_index: int
    offset: int
    length: int
    weight_bytes: int

    @property
    def span_bytes(self) -> int:
        """Bytes of memory that the aligned span around the extent takes."""
        begin = self.offset // PLACE * PLACE
        end = -(-(self.offset + self.length) // PLACE) * PLACE
        return end - begin


@dataclass(frozen=True, slots=True)
class Plan:
    """What one pass reads. `group_tiles[i]` is the tile range [begin, end) of the i-th group of matrices."""

    matrices: tuple[Tensor, ...]
    tiles: tuple[Tile, ...]
    extents: tuple[Extent, ...]
    group_tiles: tuple[tuple[int, int], ...]

    @property
    def pass_bytes(self) -> int:
        """Weight bytes of one pass with nothing pinned."""
        return sum(extent.weight_bytes for extent in self.extents)

    @property
    def largest_span(self) -> int:
        """Bytes of the largest read, alignment included: what a ring slot must hold."""
        return max(extent.span_bytes for extent in self.extents)


def build_plan(groups: Sequence[Sequence[Tensor]], tile_bytes: int = TILE_BYTES) -> Plan:
    """The plan of a pass that multiplies `groups` one after another; matrices of a group share their input.

    Tensors are (n_out, n_in) matrices. Tiles aim at `tile_bytes`, reads at no more than 5/4 of it.
    """
    matrices = tuple(tensor for group in groups for tensor in group)
    pieces: list[tuple[int, int, int, int, int]] = []  # matrix, row0, n_rows, file offset, bytes
    group_tiles: list[tuple[int, int]] = []
    index = 0
    for group in groups:
        begin = len(pieces)
        for tensor in group:
            pieces.extend(_cut(index, tensor, tile_bytes))
            index += 1
        group_tiles.append((begin, len(pieces)))
    tiles: list[Tile] = []
    extents: list[Extent] = []
    at = 0
    while at < len(pieces):
        count = _mergeable(pieces, matrices, at, tile_bytes + tile_bytes // 4)
        merged = pieces[at : at + count]
        begin = min(offset for _, _, _, offset, _ in merged)
        end = max(offset + n_bytes for _, _, _, offset, n_bytes in merged)
        tiles.extend(
            Tile(matrix, row0, n_rows, len(extents), offset - begin) for matrix, row0, n_rows, offset, _ in merged
        )
        file_index = matrices[merged[0][0]].file_index
        extents.append(Extent(file_index, begin, end - begin, sum(n_bytes for *_, n_bytes in merged)))
        at += count
    return Plan(matrices, tuple(tiles), tuple(extents), tuple(group_tiles))


def _cut(index: int, tensor: Tensor, tile_bytes: int) -> Iterable[tuple[int, int, int, int, int]]:
    """The tiles of one matrix, as (matrix, row0, n_rows, file offset, bytes)."""
    row_bytes = tensor.row_bytes
    per_tile = max(PANEL_ROWS, tile_bytes // row_bytes // PANEL_ROWS * PANEL_ROWS)
    n_out = tensor.shape[0]
    # even tiles: a last one of a few rows would cost a read of its own
    n_tiles = -(-n_out // per_tile)
    per_tile = -(-n_out // n_tiles // PANEL_ROWS) * PANEL_ROWS
    for row0 in range(0, n_out, per_tile):
        n_rows = min(per_tile, n_out - row0)
        yield index, row0, n_rows, tensor.file_offset + row0 * row_bytes, n_rows * row_bytes


def _mergeable(pieces: Sequence[tuple[int, int, int, int, int]], matrices: Sequence[Tensor], at: int, most: int) -> int:
    """How many pieces from `at` on form one run in the file of at most `most` bytes; at least 1."""
    best = 1
    file_index = matrices[pieces[at][0]].file_index
    total = 0
    for count in range(1, min(WINDOW, len(pieces) - at) + 1):
        matrix, _, _, _, n_bytes = pieces[at + count - 1]
        total += n_bytes
        if total > most or matrices[matrix].file_index != file_index:
            break
        run = sorted((offset, offset + size) for _, _, _, offset, size in pieces[at : at + count])
        if all(0 <= after[0] - before[1] <= MERGE_GAP for before, after in pairwise(run)):
            best = count
    return best


def pin_order(extents: Sequence[Extent]) -> list[int]:
    """Extents in the order in which a growing budget pins them.

    Each next one lies in the middle of the widest stretch that is still streamed (the van der Corput order of
    their byte positions), so that storage and compute stay evenly loaded at every budget. Sets are nested: more
    budget never streams more.
    """
    if not extents:
        return []
    total = sum(extent.span_bytes for extent in extents)
    bits = max(1, (len(extents) - 1).bit_length()) + 4
    keys: list[tuple[int, int]] = []
    at = 0
    for index, extent in enumerate(extents):
        middle = (2 * at + extent.span_bytes) * (1 << bits) // (2 * total)
        keys.append((int(format(middle, f"0{bits}b")[::-1], 2), index))
        at += extent.span_bytes
    return [index for _, index in sorted(keys)]


def choose_pinned(extents: Sequence[Extent], grant: int) -> frozenset[int]:
    """The extents that `grant` bytes pin: a prefix of `pin_order`, so that sets for growing grants are nested."""
    chosen: list[int] = []
    left = grant
    for index in pin_order(extents):
        left -= extents[index].span_bytes
        if left < 0:
            break
        chosen.append(index)
    return frozenset(chosen)
