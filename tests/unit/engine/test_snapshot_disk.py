"""Snapshots on a disk that is full, fails or is shared with another daemon: no fault reaches a request."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
from pathlib import Path

import pytest

from sipd.engine import snapshot_file
from sipd.engine.snapshot_store import RETRY_S, SnapshotStore
from sipd.errors import StorageFault
from tests.unit.engine.snapshot_pages import (
    CAP_BYTES,
    FILE_BYTES,
    HEAD,
    KEY,
    LONGER,
    files_in,
    open_store,
    pages_of,
    restored,
    write,
)


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return open_store(tmp_path)


def test_a_file_that_vanishes_is_a_miss(store: SnapshotStore, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(store, HEAD)
    found = store.find(HEAD)
    files_in(tmp_path)[0].unlink()
    with pytest.raises(StorageFault, match="cannot be opened"):
        restored(store, found)
    assert store.find(HEAD) == []
    assert caplog.records == []
    assert write(store, HEAD) == FILE_BYTES


def test_two_daemons_write_the_same_segment(store: SnapshotStore, tmp_path: Path) -> None:
    twin = open_store(tmp_path)
    assert write(store, HEAD) == write(twin, HEAD) == FILE_BYTES
    for each in (store, twin, open_store(tmp_path)):
        assert restored(each, each.find(HEAD)) == list(map(bytes, pages_of(HEAD)))


def test_a_folder_that_vanishes_is_made_again(store: SnapshotStore, tmp_path: Path) -> None:
    (tmp_path / KEY.folder_name()).rmdir()
    assert write(store, HEAD) == FILE_BYTES


def test_a_file_that_is_being_written_survives_a_daemons_start(store: SnapshotStore, tmp_path: Path) -> None:
    def start_another() -> None:
        open_store(tmp_path)

    assert store.write(HEAD, 0, pages_of(HEAD), between=start_another) == FILE_BYTES
    assert open_store(tmp_path).covered(HEAD) == 100


def test_a_file_left_by_a_crash_is_removed(tmp_path: Path) -> None:
    open_store(tmp_path)
    left = tmp_path / KEY.folder_name() / "x.0.part"
    left.write_bytes(b"half")
    held = left.with_name("y.0.part")
    with held.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        open_store(tmp_path)
    assert files_in(tmp_path) == [held]


def test_a_write_that_is_given_up_leaves_nothing(store: SnapshotStore, tmp_path: Path) -> None:
    def give_up() -> None:
        if files_in(tmp_path):
            raise KeyError

    with pytest.raises(KeyError):
        store.write(HEAD, 0, pages_of(HEAD), between=give_up)
    assert files_in(tmp_path) == []
    assert store.find(HEAD) == []


def test_the_name_is_given_after_the_bytes_are_on_disk(
    store: SnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[bool, int]] = []

    def fsync(fd: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(fd).st_mode)
        synced.append((is_folder, sum(path.suffix == ".kv" for path in files_in(tmp_path))))

    monkeypatch.setattr(os, "fsync", fsync)
    write(store, HEAD)
    assert synced == [(False, 0), (True, 1)]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
def test_a_failing_disk_turns_writing_off_for_a_while_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    now = [0.0]
    store = SnapshotStore(tmp_path, CAP_BYTES, KEY, monotonic=lambda: now[0])
    write(store, HEAD)
    calls: list[int] = []

    def fail(*_: object) -> int:
        calls.append(code)
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", fail)
        assert write(store, LONGER) == write(store, LONGER) == 0
        assert len(calls) == 1
        now[0] = RETRY_S
        assert write(store, LONGER) == 0
        assert len(calls) == 2
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert os.strerror(code) in caplog.text
    assert len(files_in(tmp_path)) == 1
    assert restored(store, store.find(HEAD)) == list(map(bytes, pages_of(HEAD)))
    now[0] = 2 * RETRY_S
    assert write(store, LONGER) == 4096 + 5 * 640


def test_the_last_megabytes_of_a_disk_are_left_alone(
    store: SnapshotStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    real = os.statvfs(tmp_path)
    nearly_full = os.statvfs_result((*real[:4], 16 * 1024**2 // real.f_frsize, *real[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: nearly_full)
    assert write(store, HEAD) == 0
    assert "do not fit" in caplog.text
    assert files_in(tmp_path) == []


def test_a_disk_smaller_than_the_cap_makes_room_by_the_oldest(
    store: SnapshotStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    real = os.statvfs(tmp_path)

    def disk_of_three(_: object) -> os.statvfs_result:
        used = sum(path.stat().st_size for path in files_in(tmp_path))
        free = 16 * 1024**2 + 3 * FILE_BYTES - used
        return os.statvfs_result((*real[:1], 1, *real[2:4], free, *real[5:]))

    monkeypatch.setattr(os, "statvfs", disk_of_three)
    prompts = [[n, *HEAD[1:]] for n in range(5)]
    assert [write(store, prompt) for prompt in prompts] == [FILE_BYTES] * 5
    assert [store.covered(prompt) for prompt in prompts] == [0, 0, 100, 100, 100]
    assert (store.fault, caplog.records) == (None, [])


def test_what_a_full_disk_cannot_hold_removes_nothing_and_is_a_fault(
    store: SnapshotStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write(store, HEAD)
    real = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((*real[:1], 1, *real[2:4], 0, *real[5:])))
    assert write(store, list(range(2000, 2200))) == 0
    assert store.fault is not None
    assert store.fault[0] == str(tmp_path / KEY.folder_name())
    assert "do not fit" in store.fault[1]
    assert store.covered(HEAD) == 100


def test_a_fault_is_over_with_the_next_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    store = SnapshotStore(tmp_path, CAP_BYTES, KEY, monotonic=lambda: now[0])

    def fail(*_: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", fail)
        write(store, HEAD)
    assert store.fault is not None
    assert store.fault[1] == os.strerror(errno.EROFS)
    now[0] = RETRY_S
    write(store, HEAD)
    assert store.fault is None


def test_a_folder_that_cannot_be_made_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_bytes(b"")
    now = [0.0]
    store = SnapshotStore(tmp_path / "file" / "sipd", CAP_BYTES, KEY, monotonic=lambda: now[0])
    assert store.find(HEAD) == []
    assert write(store, HEAD) == 0
    now[0] = RETRY_S
    assert write(store, HEAD) == 0
    assert len(caplog.records) == 1


def test_short_reads_and_writes_are_continued(store: SnapshotStore, monkeypatch: pytest.MonkeyPatch) -> None:
    preadv, pwritev = os.preadv, os.pwritev
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: preadv(fd, [views[0][:77]], at))
    monkeypatch.setattr(os, "pwritev", lambda fd, views, at: pwritev(fd, [views[0][:99]], at))
    write(store, HEAD)
    assert restored(store, store.find(HEAD)) == list(map(bytes, pages_of(HEAD)))


def test_little_is_dirty_or_in_flight_at_a_time(store: SnapshotStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_file, "_PIECE_BYTES", 1000)
    dirty = [0]
    most = [0]
    pwritev, fdatasync, preadv = os.pwritev, os.fdatasync, os.preadv

    def write_some(fd: int, views: list[memoryview], at: int) -> int:
        dirty[0] += (count := pwritev(fd, views, at))
        most[0] = max(most[0], dirty[0])
        return count

    def sync(fd: int) -> None:
        fdatasync(fd)
        dirty[0] = 0

    def read_some(fd: int, views: list[memoryview], at: int) -> int:
        count = preadv(fd, views, at)
        most[0] = max(most[0], count if at >= 4096 else 0)
        return count

    monkeypatch.setattr(os, "pwritev", write_some)
    monkeypatch.setattr(os, "fdatasync", sync)
    monkeypatch.setattr(os, "preadv", read_some)
    write(store, HEAD)
    assert restored(store, store.find(HEAD)) == list(map(bytes, pages_of(HEAD)))
    assert (most[0], dirty[0]) == (1000, 0)
