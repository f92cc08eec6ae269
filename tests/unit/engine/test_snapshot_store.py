"""Snapshots of KV pages: found by their ids, whole or not at all, under a cap, gone with their owner."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sipd.engine import snapshot_file
from sipd.engine.snapshot_store import SnapshotStore
from sipd.errors import StorageFault
from tests.unit.engine.snapshot_pages import (
    CAP_BYTES,
    FILE_BYTES,
    HEAD,
    KEY,
    LONGER,
    empty_pages,
    files_in,
    open_store,
    pages_of,
    restored,
    spans,
    write,
)

OTHER = [*HEAD[:70], *range(7000, 7040)]


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
