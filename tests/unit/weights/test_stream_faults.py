"""What faults do to the native stream: each has its name, nothing waits, and a recovery starts over."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

import pytest

from sipd.errors import DataLoss, SipdError, StorageFault
from sipd.kernels import binding
from sipd.weights.reader import WeightFiles
from sipd.weights.stream import Stream, shape_stream
from tests.unit.weights.stream_reader import LIBRARY, Reader, plan_of, reading, write_weights

LIBRARY.sipd_stream_fail.restype = None  # the daemon calls it from C alone
LIBRARY.sipd_stream_fail.argtypes = [ctypes.c_void_p, ctypes.POINTER(binding.ReadFault)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weights(tmp_path_factory.mktemp("stream"))


def fault_of(reader: Reader) -> StorageFault:
    found = reader.stream.fault()
    assert found is not None
    return found[0]


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
    with pytest.raises(SipdError, match=r"no memory for a ring of .*, or no thread for the first of 1 readers"):
        Stream(LIBRARY, plan, files, huge, drop_cache=False)
    files.close()
