"""Plays the pass at a stream: what the tests of the stream read with, and the weights that they read."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from sipd.kernels import binding
from sipd.weights.plan import Extent, Plan, build_plan, choose_pinned
from sipd.weights.reader import WeightFiles
from sipd.weights.stream import Stream, shape_stream
from sipd.weights.tensor_table import QuantType, Tensor

LIBRARY = binding.load_library()
EVERYTHING = 1 << 40


def write_weights(folder: Path) -> Path:
    """Weights at an odd multiple of 32, the last matrix ending in the middle of a block at the end of the file."""
    made = folder / "weights.bin"
    made.write_bytes(np.random.default_rng(0).bytes(200_000 + 32 * 7))
    return made


def plan_of(path: Path, tile_bytes: int = 4096) -> Plan:
    row_bytes, first = 4 * 50, 32 * 7
    n_rows = (path.stat().st_size - first) // row_bytes
    offset = path.stat().st_size - n_rows * row_bytes
    groups = []
    for row0 in range(0, n_rows, 300):
        count = min(300, n_rows - row0)
        groups.append([Tensor(f"m{row0}", (count, 50), QuantType.F32, 0, offset + row0 * row_bytes, count * row_bytes)])
    return build_plan(groups, tile_bytes)


class Reader:
    """Plays the pass: acquires, compares and releases extents."""

    def __init__(self, stream: Stream, plan: Plan, data: bytes) -> None:
        self.stream = stream
        self.plan = plan
        self.data = data

    def acquire(self, index: int, *, wait: bool = True) -> bytes | None:
        extent = self.plan.extents[index]
        pointer = LIBRARY.sipd_stream_acquire(self.stream.handle, index, int(wait))
        return None if pointer is None else ctypes.string_at(pointer, extent.length)

    def wanted(self, extent: Extent) -> bytes:
        return self.data[extent.offset : extent.offset + extent.length]

    def release(self, index: int) -> None:
        LIBRARY.sipd_stream_release(self.stream.handle, index)

    def walk(self, end: int | None = None) -> None:
        """One pass, or the beginning of one; every byte is compared."""
        for index, extent in enumerate(self.plan.extents[:end]):
            assert self.acquire(index) == self.wanted(extent), index
            self.release(index)

    def walk_to_limit(self, limit: int) -> None:
        """A pass that leaves out the streamed extents from `limit` on, and says so at its beginning."""
        LIBRARY.sipd_stream_begin(self.stream.handle, limit)
        self.walk(limit)
        LIBRARY.sipd_stream_end(self.stream.handle)

    def plan_bytes_at_rest(self) -> int:
        """Bytes read so far, with nothing in flight."""
        self.stream.rewind()
        return self.stream.counters().plan_bytes


@contextmanager
def reading(
    path: Path, *, pin: int = 0, n_slots: int = 3, n_readers: int = 2, direct: str = "off", tile_bytes: int = 4096
) -> Iterator[Reader]:
    plan = plan_of(path, tile_bytes)
    files = WeightFiles([path], [path.stat().st_size], direct=direct)
    shape = shape_stream(plan, choose_pinned(plan.extents, pin), n_slots, n_readers)
    stream = Stream(LIBRARY, plan, files, shape, drop_cache=False)
    try:
        yield Reader(stream, plan, path.read_bytes())
    finally:
        stream.close()
