"""Snapshots of KV pages: found by their ids, whole or not at all, under a cap, gone with their owner."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sipd.engine import snapshot_file
from sipd.engine.snapshot_store import RETRY_S, SnapshotStore
from sipd.errors import StorageFault
from tests.unit.engine.snapshot_pages import (
    CAP_BYTES,
    KEY,
    empty_pages,
    files_in,
    open_store,
    pages_of,
    restored,
    spans,
    write,
)

HEAD = list(range(1000, 1100))  # 3 whole pages and 4 positions
LONGER = [*HEAD, *range(5000, 5060)]  # 5 whole pages
OTHER = [*HEAD[:70], *range(7000, 7040)]
FILE_BYTES = 4096 + 4 * 640  # of HEAD


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return open_store(tmp_path)


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_what_was_written_is_found_and_read_back(store: SnapshotStore) -> None:
    assert write(store, HEAD) == FILE_BYTES
    found = store.find(HEAD)
    assert spans(found) == [(0, 4, 100)]
    assert restored(store, found) == list(map(bytes, pages_of(HEAD)))


def test_what_was_written_is_found_by_the_next_daemon(store: SnapshotStore, tmp_path: Path) -> None:
    write(store, HEAD)
    again = open_store(tmp_path)
    assert restored(again, again.find(LONGER)) == list(map(bytes, pages_of(HEAD)))
    assert again.n_bytes == FILE_BYTES


def test_nothing_is_found_for_ids_that_differ_from_the_first_on(store: SnapshotStore) -> None:
    write(store, HEAD)
    assert store.find([1, *HEAD[1:]]) == []
    assert store.covered([1, *HEAD[1:]]) == 0


def test_ids_that_differ_later_get_the_positions_before(store: SnapshotStore) -> None:
    write(store, HEAD)
    assert spans(store.find(OTHER)) == [(0, 3, 70)]
    assert store.covered(OTHER) == 70


@pytest.mark.parametrize("n_common", range(1, 101))
def test_every_common_length_is_told_exactly(store: SnapshotStore, n_common: int) -> None:
    write(store, HEAD)
    assert store.covered([*HEAD[:n_common], 1, 2, 3]) == n_common


def test_a_prompt_that_is_shorter_than_the_segment_gets_its_own_length(store: SnapshotStore) -> None:
    write(store, HEAD)
    assert spans(store.find(HEAD[:33])) == [(0, 2, 33)]


def test_pages_that_are_in_memory_are_not_read(store: SnapshotStore) -> None:
    write(store, LONGER)
    found = store.find(LONGER, have_positions=70)
    assert spans(found) == [(2, 3, 160)]
    assert restored(store, found) == list(map(bytes, pages_of(LONGER, 2)))


def test_nothing_is_found_that_memory_does_not_hold_already(store: SnapshotStore) -> None:
    write(store, HEAD)
    assert store.find(LONGER, have_positions=100) == []
    assert store.find(HEAD, have_positions=100) == []


def test_a_segment_continues_the_one_before_it(store: SnapshotStore) -> None:
    write(store, HEAD)
    assert write(store, LONGER, first_page=3) == 4096 + 2 * 640
    found = store.find([*LONGER, 9])
    assert spans(found) == [(0, 3, 96), (3, 2, 160)]
    assert restored(store, found) == list(map(bytes, pages_of(LONGER)))


def test_a_segment_is_no_use_without_what_comes_before_it(store: SnapshotStore) -> None:
    write(store, LONGER, first_page=3)
    assert store.find(LONGER, have_positions=95) == []
    assert spans(store.find(LONGER, have_positions=96)) == [(3, 2, 160)]


def test_a_segment_of_another_continuation_is_not_taken(store: SnapshotStore) -> None:
    write(store, LONGER, first_page=3)
    assert store.find([*HEAD[:95], 1, *LONGER[96:]], have_positions=96) == []


def test_the_same_pages_are_written_once(store: SnapshotStore, tmp_path: Path) -> None:
    write(store, LONGER)
    assert write(store, LONGER) == 0
    assert write(store, HEAD) == 0
    assert len(files_in(tmp_path)) == 1


def test_a_longer_segment_replaces_the_ones_it_covers(store: SnapshotStore, tmp_path: Path) -> None:
    write(store, HEAD)
    write(store, LONGER)
    assert len(files_in(tmp_path)) == store.n_segments == 1
    assert store.covered(LONGER) == 160


@pytest.mark.usefixtures("open_umask")
def test_files_and_folders_are_the_owners_alone(tmp_path: Path) -> None:
    write(open_store(tmp_path / "new"), HEAD)
    (file,) = files_in(tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "key",
    [
        replace(KEY, model_digest=b"\x02" * 32),
        replace(KEY, model_digest=b"\x01" * 31),
        replace(KEY, contract=4),
        replace(KEY, kv_layout="f32 k,v"),
        replace(KEY, page_bytes=641),
    ],
)
def test_another_key_finds_nothing_and_removes_nothing(
    store: SnapshotStore, tmp_path: Path, key: snapshot_file.ModelKey
) -> None:
    write(store, HEAD)
    assert open_store(tmp_path, key=key).find(HEAD) == []
    assert open_store(tmp_path).covered(HEAD) == 100


def test_the_least_recently_used_goes_when_the_cap_is_reached(tmp_path: Path) -> None:
    store = open_store(tmp_path, 3 * FILE_BYTES)
    prompts = [[n, *HEAD[1:]] for n in range(4)]
    for prompt in prompts[:3]:
        write(store, prompt)
    assert store.find(prompts[0])
    assert write(store, prompts[3]) == FILE_BYTES
    assert [store.covered(prompt) for prompt in prompts] == [100, 0, 100, 100]
    assert sum(path.stat().st_size for path in files_in(tmp_path)) == store.n_bytes == 3 * FILE_BYTES


def test_the_end_of_a_chain_goes_before_its_beginning(tmp_path: Path) -> None:
    store = open_store(tmp_path, 2 * FILE_BYTES)
    write(store, HEAD)
    write(store, LONGER, first_page=3)
    store.find(LONGER, have_positions=96)  # the end alone is used: its beginning is in memory
    write(store, [1, *HEAD[1:]])
    assert store.covered(LONGER) == 100


def test_what_a_new_segment_continues_is_not_removed_for_it(tmp_path: Path) -> None:
    store = open_store(tmp_path, FILE_BYTES)
    write(store, HEAD)
    assert write(store, LONGER, first_page=3) == 0
    assert store.covered(LONGER) == 100


def test_a_segment_above_the_cap_is_refused_and_removes_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path, FILE_BYTES)
    write(store, HEAD)
    assert write(store, list(range(200))) == 0
    assert store.covered(HEAD) == 100


def test_a_lower_cap_is_kept_from_the_start(store: SnapshotStore, tmp_path: Path) -> None:
    for n in range(4):
        write(store, [n, *HEAD[1:]])
    assert open_store(tmp_path, 2 * FILE_BYTES).n_bytes == 2 * FILE_BYTES
    assert len(files_in(tmp_path)) == 2


def test_the_time_of_use_outlives_the_daemon(store: SnapshotStore, tmp_path: Path) -> None:
    prompts = [[n, *HEAD[1:]] for n in range(3)]
    for prompt in prompts:
        write(store, prompt)
    for n, path in enumerate(sorted(files_in(tmp_path), key=lambda path: path.stat().st_mtime_ns)):
        os.utime(path, (1000 + n, 1000 + n))
    restored(store, store.find(prompts[0]))
    again = open_store(tmp_path, 2 * FILE_BYTES)
    assert [again.covered(prompt) for prompt in prompts] == [100, 0, 100]


def test_files_of_other_models_count_and_the_oldest_goes_first(store: SnapshotStore, tmp_path: Path) -> None:
    write(store, HEAD)
    other = open_store(tmp_path, 2 * FILE_BYTES, replace(KEY, contract=4))
    write(other, HEAD)
    write(other, [1, *HEAD[1:]])
    assert (store.n_bytes, other.n_bytes) == (FILE_BYTES, 2 * FILE_BYTES)
    assert open_store(tmp_path).n_bytes == 0
    assert other.n_bytes == 2 * FILE_BYTES


def test_the_index_is_bounded(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path, CAP_BYTES, KEY, max_index_bytes=3000)
    for n in range(4):
        assert write(store, [n, *HEAD[1:]]) == FILE_BYTES
    assert store.index_bytes == 2 * (1024 + 400)
    assert len(files_in(tmp_path)) == 2
    assert SnapshotStore(tmp_path, CAP_BYTES, KEY, max_index_bytes=1500).n_segments == 1
    assert len(files_in(tmp_path)) == 1


def test_an_owners_segments_go_with_it(store: SnapshotStore) -> None:
    write(store, HEAD)
    write(store, LONGER, first_page=3, owner="chat")
    write(store, [1, *HEAD[1:]], owner="other")
    assert store.remove_owner("chat") == 1
    assert store.covered(LONGER) == 100
    assert spans(store.find([1, *HEAD[1:]])) == [(0, 4, 100)]


def test_an_owners_segments_serve_everybody_but_are_no_ground_to_build_on(store: SnapshotStore) -> None:
    write(store, HEAD, owner="chat")
    assert spans(store.find(LONGER)) == [(0, 4, 100)]
    assert store.covered(LONGER, "chat") == 100
    assert store.covered(LONGER) == store.covered(LONGER, "other") == 0


def test_common_pages_stay_when_an_owner_that_had_them_too_ends(store: SnapshotStore) -> None:
    write(store, HEAD, owner="chat")
    assert write(store, HEAD) == FILE_BYTES
    assert write(store, HEAD, owner="other") == 0
    store.remove_owner("chat")
    assert store.covered(HEAD) == 100


def test_owners_of_an_earlier_run_go_when_idle(store: SnapshotStore, tmp_path: Path) -> None:
    write(store, HEAD)
    write(store, [1, *HEAD[1:]], owner="idle")
    write(store, [2, *HEAD[1:]], owner="live")
    for path in files_in(tmp_path):
        os.utime(path, (1000, 1000))
    again = open_store(tmp_path)
    write(again, [3, *HEAD[1:]], owner="new")
    assert again.remove_idle(60.0, ["live"]) == 1
    assert [again.covered([n, *HEAD[1:]], owner) for n, owner in ((1, "idle"), (2, "live"), (3, "new"))] == [
        0,
        100,
        100,
    ]
    assert again.covered(HEAD) == 100


def test_an_owner_is_not_named_on_disk(store: SnapshotStore, tmp_path: Path) -> None:
    write(store, HEAD, owner="a-telling-name")
    (file,) = files_in(tmp_path)
    assert b"telling" not in file.read_bytes()
    assert "telling" not in str(file)


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


def test_a_segment_above_the_cap_is_told_once_with_both_sizes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(tmp_path, FILE_BYTES)
    with caplog.at_level(logging.INFO):
        for first in (2000, 3000):
            assert write(store, list(range(first, first + 200))) == 0
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert str(4096 + 7 * 640) in record.getMessage()
    assert str(FILE_BYTES) in record.getMessage()


def test_segments_that_begin_256_pages_apart_have_files_of_their_own(tmp_path: Path) -> None:
    store = open_store(tmp_path, 2 * CAP_BYTES)
    ids = list(range(258 * 32))
    assert write(store, ids, first_page=257) > 0
    assert write(store, ids, first_page=1) > 0
    assert len(files_in(tmp_path)) == 1, "the longer one covers the shorter, and is another file"
    assert spans(store.find(ids, have_positions=32)) == [(1, 257, 258 * 32)]


def test_pages_that_a_file_does_not_hold_are_a_fault(store: SnapshotStore, tmp_path: Path) -> None:
    write(store, LONGER, first_page=3)
    (path,) = files_in(tmp_path)
    ids = store.find(LONGER, have_positions=96)[0].stored.ids
    for first_page, n_pages in ((2, 1), (3, 3), (4, 2)):
        with pytest.raises(StorageFault, match="holds pages 3 to 5, wanted"):
            snapshot_file.read_pages(path, KEY, ids, first_page, empty_pages(n_pages))


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
