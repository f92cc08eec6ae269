"""Opening model files for reading weights: direct or buffered, again after a fault, and files that changed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sipd.errors import DataLoss, StorageFault
from sipd.weights.reader import WeightFiles, read_exact

DATA = bytes(range(256)) * 64  # 16 KiB


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "weights.bin"
    made.write_bytes(DATA)
    return made


def open_files(*paths: Path, direct: str = "off") -> WeightFiles:
    return WeightFiles(paths, [path.stat().st_size for path in paths], direct=direct)


def n_open() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def refuse_direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that does not know O_DIRECT."""
    real = os.open

    def refuse(path: Path, flags: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(path))
        return real(path, flags)

    monkeypatch.setattr(os, "open", refuse)


@pytest.mark.parametrize(("offset", "length"), [(0, 16384), (0, 1), (33, 5000), (4095, 2), (16383, 1)])
@pytest.mark.parametrize("direct", ["off", "auto"])
def test_any_span_of_a_file_can_be_read(path: Path, direct: str, offset: int, length: int) -> None:
    files = open_files(path, direct=direct)
    assert read_exact(files.fds[0], offset, length) == DATA[offset : offset + length]
    files.close()


def test_a_read_beyond_the_end_says_what_was_wanted_and_where_the_file_ends(path: Path) -> None:
    files = open_files(path)
    with pytest.raises(EOFError, match="wanted 100 bytes at 16380, the file ends at 16384"):
        read_exact(files.fds[0], 16380, 100)
    files.close()


def test_short_reads_are_put_together(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = open_files(path)
    real = os.preadv

    def half(fd: int, buffers: list[memoryview], offset: int) -> int:
        with buffers[0][: max(1, len(buffers[0]) // 2)] as part:
            return real(fd, [part], offset)

    monkeypatch.setattr(os, "preadv", half)
    assert read_exact(files.fds[0], 33, 9000) == DATA[33:9033]
    files.close()


def test_a_buffered_file_needs_no_alignment(path: Path) -> None:
    files = open_files(path)
    assert (files.alignment, files.uses_direct_io, files.fallback_reason) == (1, False, "")
    files.close()


def test_a_file_system_without_o_direct_is_read_through_the_page_cache(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_direct(monkeypatch)
    files = open_files(path, direct="auto")
    assert not files.uses_direct_io
    assert "refuses O_DIRECT (Invalid argument)" in files.fallback_reason
    files.close()


def test_direct_reads_that_are_insisted_on_are_refused_with_the_reason(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_direct(monkeypatch)
    before = n_open()
    with pytest.raises(StorageFault, match=r"refuses O_DIRECT .*, and direct_io is on"):
        open_files(path, direct="on")
    assert n_open() == before


@pytest.mark.parametrize(("least", "found"), [(512, 512), (4096, 4096), (8192, 1)])
def test_the_alignment_is_the_smallest_that_works(
    path: Path, monkeypatch: pytest.MonkeyPatch, least: int, found: int
) -> None:
    real = os.preadv

    def picky(fd: int, buffers: list[memoryview], offset: int) -> int:
        if offset % least:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(fd, buffers, offset)

    probe = open_files(path, direct="auto")
    is_direct = probe.uses_direct_io
    probe.close()
    if not is_direct:
        pytest.skip("direct reads do not work here")
    monkeypatch.setattr(os, "preadv", picky)
    files = open_files(path, direct="auto")
    assert files.alignment == found
    files.close()


def test_a_missing_file_is_named(tmp_path: Path, path: Path) -> None:
    before = n_open()
    with pytest.raises(StorageFault, match=r"gone\.bin: at byte 0: cannot open: No such file"):
        WeightFiles([path, tmp_path / "gone.bin"], [len(DATA), 1], direct="off")
    assert n_open() == before


@pytest.mark.parametrize("size", [len(DATA) + 1, len(DATA) - 1])
def test_a_file_of_another_size_than_its_header_was_read_from_is_refused(path: Path, size: int) -> None:
    with pytest.raises(DataLoss, match=f"the file has 16384 bytes, {size} when it was loaded") as fault:
        WeightFiles([path], [size], direct="off")
    assert fault.value.path == str(path)
    assert fault.value.offset == min(size, 16384)


def test_reopening_gives_new_descriptors_and_keeps_the_old_until_told(path: Path) -> None:
    files = open_files(path)
    before = n_open()
    old = list(files.fds)
    files.reopen()
    assert files.fds != old
    assert os.pread(old[0], 4, 0) == DATA[:4]
    files.close_stale()
    assert n_open() == before
    files.close()
    assert n_open() == before - 1


def test_a_reopening_that_fails_leaves_the_old_descriptors_in_use(path: Path) -> None:
    files = open_files(path)
    old = list(files.fds)
    path.rename(path.with_name("away"))
    for _ in range(3):
        with pytest.raises(StorageFault, match="cannot open"):
            files.reopen()
    assert files.fds == old
    assert os.pread(old[0], 4, 0) == DATA[:4]
    path.with_name("away").rename(path)
    files.reopen()
    files.close()


def test_a_file_that_shrank_is_told_when_it_is_reopened(path: Path) -> None:
    files = open_files(path)
    before = n_open()
    os.truncate(path, 1000)
    with pytest.raises(DataLoss, match="at byte 1000: the file has 1000 bytes, 16384 when it was loaded"):
        files.reopen()
    with pytest.raises(DataLoss):
        files.check()
    assert n_open() == before
    files.close()


def test_a_file_that_was_replaced_is_told_when_it_is_reopened(path: Path) -> None:
    files = open_files(path)
    other = path.with_name("other.bin")
    other.write_bytes(DATA[::-1])
    os.utime(other, ns=(0, 1))
    other.rename(path)
    files.check()  # the open file is still the one that was loaded
    with pytest.raises(DataLoss, match="written to or replaced"):
        files.reopen()
    files.close()


def test_a_file_that_was_written_to_is_told(path: Path) -> None:
    files = open_files(path)
    files.check()
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1_000_000))
    with pytest.raises(DataLoss, match="written to or replaced"):
        files.check()
    files.close()


def test_a_fallback_holds_from_then_on(path: Path) -> None:
    files = open_files(path, direct="auto")
    files.fall_back_to_buffered("read failed with EINVAL")
    assert (files.alignment, files.fallback_reason) == (1, "read failed with EINVAL")
    files.reopen()
    assert not files.uses_direct_io
    files.close()


def test_closing_twice_does_nothing(path: Path) -> None:
    files = open_files(path)
    files.close()
    files.close()
    assert files.fds == []
