"""The native stream: every extent in order, pass after pass, with the right bytes, and what faults do to it."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from sipd.errors import DataLoss, SipdError, StorageFault
from sipd.kernels import binding
from sipd.process_memory import read_anonymous_bytes
from sipd.weights.plan import Extent, Plan, build_plan, choose_pinned
from sipd.weights.reader import WeightFiles
from sipd.weights.stream import Stream, StreamShape, shape_stream, shrink_shape
from sipd.weights.tensor_table import QuantType, Tensor

LIBRARY = binding.load_library()
LIBRARY.sipd_stream_fail.restype = None  # the daemon calls it from C alone
LIBRARY.sipd_stream_fail.argtypes = [ctypes.c_void_p, ctypes.POINTER(binding.ReadFault)]
EVERYTHING = 1 << 40
DEADLINE_S = 20.0


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights at an odd multiple of 32, the last matrix ending in the middle of a block at the end of the file."""
    made = tmp_path_factory.mktemp("stream") / "weights.bin"
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


def fault_of(reader: Reader) -> StorageFault:
    found = reader.stream.fault()
    assert found is not None
    return found[0]


@pytest.mark.parametrize("pin", [0, 60_000, EVERYTHING], ids=["streamed", "half", "pinned"])
@pytest.mark.parametrize("direct", ["off", "auto"])
@pytest.mark.parametrize(("n_slots", "n_readers"), [(1, 1), (2, 4), (3, 2), (8, 4), (64, 8)])
def test_every_pass_gets_every_extent_with_the_files_bytes(
    path: Path, pin: int, direct: str, n_slots: int, n_readers: int
) -> None:
    with reading(path, pin=pin, n_slots=n_slots, n_readers=n_readers, direct=direct) as reader:
        for _ in range(4):
            reader.walk()


def test_the_last_extent_may_end_in_the_middle_of_a_block_at_the_end_of_the_file(path: Path) -> None:
    with reading(path, direct="auto") as reader:
        last = max(reader.plan.extents, key=lambda extent: extent.offset)
        assert last.offset + last.length == path.stat().st_size
        assert path.stat().st_size % 512
        assert reader.plan.extents[0].offset % 64 == 32
        reader.walk()


def test_an_extent_of_many_tiles_may_be_asked_for_tile_by_tile(path: Path) -> None:
    with reading(path) as reader:
        for index, extent in enumerate(reader.plan.extents):
            for _ in range(3):
                assert reader.acquire(index) == reader.wanted(extent)
            reader.release(index)


def test_several_extents_may_be_held_at_once(path: Path) -> None:
    with reading(path, n_slots=4) as reader:
        held = [reader.acquire(index) for index in range(4)]
        assert held == [reader.wanted(extent) for extent in reader.plan.extents[:4]]
        assert reader.acquire(4, wait=False) is None
        for index in range(4):
            reader.release(index)
        assert reader.acquire(4) == reader.wanted(reader.plan.extents[4])


def test_a_rewind_starts_over_at_the_first_extent(path: Path) -> None:
    with reading(path, pin=60_000) as reader:
        for end in (0, 1, 2, 7, 20):
            reader.walk(end)
            reader.stream.rewind()
            reader.walk()


def test_a_rewind_in_the_middle_of_held_extents_starts_over(path: Path) -> None:
    with reading(path, n_slots=4) as reader:
        assert reader.acquire(0) is not None
        assert reader.acquire(1) is not None
        reader.stream.rewind()
        reader.walk()


def test_reads_go_on_over_the_end_of_a_pass(path: Path) -> None:
    with reading(path, n_slots=3) as reader:
        reader.walk()
        n_extents = len(reader.plan.extents)
        done = threading.Event()
        wanted = reader.plan.pass_bytes + sum(extent.length for extent in reader.plan.extents[:3])
        for _ in range(20_000):
            if reader.stream.counters().plan_bytes >= wanted:
                done.set()
                break
            os.sched_yield()
        assert done.is_set(), f"{n_extents} extents, {reader.stream.counters()}"


def test_counters_count_every_extent_once_a_pass_and_pins_once_at_all(path: Path) -> None:
    with reading(path, pin=60_000, n_slots=3) as reader:
        extents = reader.plan.extents
        pinned = choose_pinned(extents, 60_000)
        for _ in range(3):
            reader.walk()
        reader.stream._library.sipd_stream_rewind(reader.stream.handle)  # nothing is in flight for a moment
        found = reader.stream.counters().plan_bytes
        streamed = sum(extent.length for index, extent in enumerate(extents) if index not in pinned)
        kept = sum(extents[index].length for index in pinned)
        ahead = 2 * 3 * max(extent.length for extent in extents)
        assert 3 * streamed + kept <= found <= 3 * streamed + kept + ahead


@pytest.mark.parametrize("pin", [0, 60_000, 150_000, EVERYTHING], ids=["streamed", "third", "most", "pinned"])
@pytest.mark.parametrize(("n_slots", "n_readers"), [(1, 1), (2, 4), (3, 2), (8, 4), (200, 8)])
def test_passes_that_leave_out_the_end_get_the_files_bytes_and_so_do_the_others(
    path: Path, pin: int, n_slots: int, n_readers: int
) -> None:
    with reading(path, pin=pin, n_slots=n_slots, n_readers=n_readers) as reader:
        n_extents = len(reader.plan.extents)
        limits = [n_extents, n_extents - 9] + [n_extents - 9] * 2 + [n_extents] * 2 + [n_extents - 9, n_extents] * 3
        for limit in limits:
            reader.walk_to_limit(limit)
        reader.stream.rewind()
        for limit in reversed(limits):
            reader.walk_to_limit(limit)


def test_what_passes_leave_out_is_read_for_the_first_of_them_at_most(path: Path) -> None:
    with reading(path, n_slots=6, n_readers=2) as reader:
        extents = reader.plan.extents
        limit = len(extents) - 20
        used = sum(extent.length for extent in extents[:limit])
        for _ in range(5):
            reader.walk_to_limit(limit)
        ahead = 2 * 6 * max(extent.length for extent in extents)  # once by this, once by the rewind
        assert 5 * used <= reader.plan_bytes_at_rest() <= 5 * used + ahead


def test_a_ring_that_holds_more_than_a_pass_reads_what_is_left_out_once(path: Path) -> None:
    with reading(path, n_slots=200, n_readers=2) as reader:
        extents = reader.plan.extents
        limit = len(extents) - 20
        reader.walk(0)
        wanted = reader.plan.pass_bytes  # the ring is full before the first pass begins
        while reader.stream.counters().plan_bytes < 2 * wanted:
            os.sched_yield()
        before = reader.stream.counters().plan_bytes
        used, left_out = (sum(e.length for e in part) for part in (extents[:limit], extents[limit:]))
        for _ in range(12):
            reader.walk_to_limit(limit)
        n_read = reader.stream.counters().plan_bytes - before
        assert n_read <= 12 * used
        assert left_out > 0


def test_a_fault_while_left_out_extents_are_dropped_ends_the_wait(path: Path) -> None:
    with reading(path, n_slots=200, n_readers=2) as reader:
        limit = len(reader.plan.extents) - 20
        LIBRARY.sipd_stream_begin(reader.stream.handle, limit)
        reader.walk(limit)
        fault = binding.ReadFault(errno.EIO, 0, 4096, 100, 0)
        LIBRARY.sipd_stream_fail(reader.stream.handle, ctypes.byref(fault))
        LIBRARY.sipd_stream_end(reader.stream.handle)
        assert fault_of(reader).offset == 4096
        reader.stream.rewind()
        reader.walk_to_limit(limit)
        reader.walk_to_limit(len(reader.plan.extents))


def test_a_resident_plan_is_read_once(path: Path) -> None:
    with reading(path, pin=EVERYTHING) as reader:
        for _ in range(5):
            reader.walk()
        assert reader.stream.counters().plan_bytes == sum(extent.length for extent in reader.plan.extents)


def test_buffered_reads_move_no_byte_beyond_the_extents(path: Path) -> None:
    with reading(path, pin=EVERYTHING) as reader:
        reader.walk()
        counters = reader.stream.counters()
        assert counters.device_bytes == counters.plan_bytes
        assert counters.busy_s > 0


def test_direct_reads_move_whole_blocks(path: Path) -> None:
    with reading(path, pin=EVERYTHING, direct="auto") as reader:
        if not reader.stream.uses_direct_io:
            pytest.skip("direct reads do not work here")
        reader.walk()
        counters = reader.stream.counters()
        assert counters.plan_bytes <= counters.device_bytes <= sum(e.span_bytes for e in reader.plan.extents)
        assert counters.device_bytes % 512 == 0


def test_an_early_end_is_data_loss_with_the_file_and_the_place(tmp_path: Path, path: Path) -> None:
    copy = tmp_path / "copy.bin"
    copy.write_bytes(path.read_bytes())
    with reading(copy, n_slots=3, n_readers=1) as reader:
        reader.walk()
        os.truncate(copy, 100_000)
        first_lost = next(i for i, e in enumerate(reader.plan.extents) if e.offset + e.length > 100_000)
        for index in range(first_lost):
            if reader.acquire(index) is None:
                break
            reader.release(index)
        else:
            assert reader.acquire(first_lost) is None
        fault = fault_of(reader)
        assert isinstance(fault, DataLoss)
        assert fault.path == str(copy)
        assert fault.offset == 100_000
        assert "wanted" in str(fault)


def test_after_a_fault_nothing_waits_and_a_recovery_starts_over(tmp_path: Path, path: Path) -> None:
    copy = tmp_path / "copy.bin"
    copy.write_bytes(path.read_bytes())
    with reading(copy) as reader:
        modified_ns = copy.stat().st_mtime_ns
        os.truncate(copy, 0)
        for index in range(len(reader.plan.extents)):
            if reader.acquire(index) is None:
                break
            reader.release(index)
        assert reader.stream.fault() is not None
        with pytest.raises(DataLoss):
            reader.stream.recover()
        copy.write_bytes(reader.data)
        os.utime(copy, ns=(modified_ns, modified_ns))
        reader.stream.recover()
        assert reader.stream.fault() is None
        reader.walk()


def test_an_error_of_the_device_is_a_storage_fault_with_its_name(path: Path) -> None:
    with reading(path) as reader:
        fault = binding.ReadFault(errno.EIO, 0, 4096, 100, 0)
        LIBRARY.sipd_stream_fail(reader.stream.handle, ctypes.byref(fault))
        found = reader.stream.fault()
        assert found is not None
        assert found[1] == errno.EIO
        assert not isinstance(found[0], DataLoss)
        assert str(found[0]) == f"{path}: at byte 4096: read failed with EIO: wanted 100 bytes, got 0"
        reader.stream.rewind()
        reader.walk()


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_refused_direct_reads_are_replaced_by_buffered_ones_with_one_line(path: Path, number: int) -> None:
    lines: list[str] = []
    with reading(path, direct="auto", pin=60_000) as reader:
        if not reader.stream.uses_direct_io:
            pytest.skip("direct reads do not work here")
        reader.stream.on_fallback(lines.append)
        reader.walk(5)
        fault = StorageFault(str(path), 0, "read failed")
        assert reader.stream.recover_from(fault, number)
        assert not reader.stream.uses_direct_io
        reader.walk()
        assert not reader.stream.recover_from(fault, number)
        assert len(lines) == 1
        assert "reading through the page cache from now on" in lines[0]


def test_other_errors_are_no_reason_to_fall_back(path: Path) -> None:
    with reading(path, direct="auto") as reader:
        was_direct = reader.stream.uses_direct_io
        assert not reader.stream.recover_from(StorageFault(str(path), 0, "read failed"), errno.EIO)
        assert reader.stream.uses_direct_io is was_direct


def test_counters_can_be_read_from_other_threads_until_after_the_end(path: Path) -> None:
    with reading(path) as reader:
        is_ended = threading.Event()
        seen: list[int] = []

        def watch() -> None:
            while not is_ended.is_set():
                seen.append(reader.stream.counters().plan_bytes)

        thread = threading.Thread(target=watch)
        thread.start()
        for _ in range(20):
            reader.walk()
        last = reader.stream.counters().plan_bytes
        reader.stream.close()
        assert reader.stream.counters().plan_bytes >= last
        is_ended.set()
        thread.join(DEADLINE_S)
        assert seen == sorted(seen)


def test_a_stream_closes_while_it_reads_ahead(path: Path) -> None:
    for _ in range(20):
        with reading(path, n_slots=8, n_readers=8):
            pass


def test_a_wholly_pinned_plan_needs_no_ring(path: Path) -> None:
    plan = plan_of(path)
    shape = shape_stream(plan, frozenset(range(len(plan.extents))), 8, 2)
    assert shape.ring_bytes <= 4096 + shape.slack_bytes
    assert shape.pin_bytes == sum(extent.span_bytes for extent in plan.extents)


def test_too_many_files_are_refused(path: Path) -> None:
    files = WeightFiles([path] * 65, [path.stat().st_size] * 65, direct="off")
    plan = plan_of(path)
    with pytest.raises(SipdError, match="65 files in one checkpoint, sipd reads at most 64"):
        Stream(LIBRARY, plan, files, shape_stream(plan, frozenset(), 3, 1), drop_cache=False)
    files.close()


def test_memory_that_is_not_there_is_refused(path: Path) -> None:
    files = WeightFiles([path], [path.stat().st_size], direct="off")
    plan = plan_of(path)
    shape = shape_stream(plan, frozenset(), 3, 1)
    huge = type(shape)(3, 1, 1 << 60, shape.slack_bytes, {}, 0)
    with pytest.raises(SipdError, match="no memory for a ring"):
        Stream(LIBRARY, plan, files, huge, drop_cache=False)
    files.close()


def first_shape(reader: Reader, pin: int, n_slots: int = 3) -> StreamShape:
    return shape_stream(reader.plan, choose_pinned(reader.plan.extents, pin), n_slots, 2)


@pytest.mark.parametrize("pin", [60_000, 150_000, EVERYTHING], ids=["third", "most", "pinned"])
@pytest.mark.parametrize("n_bytes", [1, 30_000, 100_000, EVERYTHING])
def test_a_stream_that_pins_less_and_all_again_gets_the_files_bytes(path: Path, pin: int, n_bytes: int) -> None:
    with reading(path, pin=pin) as reader:
        first = first_shape(reader, pin)
        smaller = shrink_shape(reader.plan, first, n_bytes, 3)
        for shape in (smaller, first, smaller):
            reader.walk()
            reader.stream.repin(shape)
            reader.walk()


def test_what_is_pinned_no_more_is_streamed_and_nothing_else_is(path: Path) -> None:
    with reading(path, pin=150_000, n_readers=1) as reader:
        reader.walk()
        smaller = shrink_shape(reader.plan, first_shape(reader, 150_000), 60_000, 3)
        reader.stream.repin(smaller)
        before = reader.plan_bytes_at_rest()
        for _ in range(3):
            reader.walk()
        found = reader.plan_bytes_at_rest() - before
        extents = reader.plan.extents
        streamed = sum(extent.length for index, extent in enumerate(extents) if index not in smaller.pin_offsets)
        ahead = 2 * 3 * max(extent.length for extent in extents)
        assert 3 * streamed - ahead <= found <= 3 * streamed + ahead
        assert 3 * ahead < streamed


def test_a_smaller_shape_pins_what_a_smaller_budget_would_have_pinned(path: Path) -> None:
    plan = plan_of(path)
    first = shape_stream(plan, choose_pinned(plan.extents, 150_000), 3, 2)
    smaller = shrink_shape(plan, first, 60_000, 3)
    assert smaller.pin_bytes <= first.pin_bytes - 60_000
    assert smaller.pin_offsets.items() <= first.pin_offsets.items()
    assert (smaller.n_slots, smaller.ring_bytes) == (first.n_slots, first.ring_bytes)
    assert shrink_shape(plan, first, EVERYTHING, 3).pin_bytes == 0


def test_a_resident_plan_that_gives_memory_back_pays_for_its_ring_and_keeps_what_it_must(path: Path) -> None:
    plan = plan_of(path)
    first = shape_stream(plan, frozenset(range(len(plan.extents))), 3, 2)
    smaller = shrink_shape(plan, first, 50_000, 3, frozenset({0, 1}))
    assert smaller.pin_bytes + smaller.ring_bytes <= first.pin_bytes + first.ring_bytes - 50_000
    assert smaller.slot_bytes == plan.largest_span
    assert {0, 1} <= smaller.pin_offsets.keys()
    assert shrink_shape(plan, first, EVERYTHING, 3, frozenset({0, 1})).pin_offsets.keys() == {0, 1}


def test_pages_of_what_is_pinned_no_more_go_back_to_the_kernel(tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    path.write_bytes(np.random.default_rng(1).bytes(24_000_000 + 32 * 7))
    with reading(path, pin=EVERYTHING, tile_bytes=1 << 20) as reader:
        reader.walk()
        before = read_anonymous_bytes()
        first = first_shape(reader, EVERYTHING)
        reader.stream.repin(shrink_shape(reader.plan, first, 12_000_000, 3))
        reader.stream.rewind()
        assert read_anonymous_bytes() <= before - 12_000_000 + 1_000_000
