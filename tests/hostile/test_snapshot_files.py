"""Snapshot files that are cut, flipped, foreign, oversized or no files: computed again, removed, never believed."""

from __future__ import annotations

import os
import struct
import tracemalloc
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sipd.engine.snapshot_file import VERSION, SnapshotHead, read_head
from sipd.errors import StorageFault
from tests.unit.engine.snapshot_pages import KEY, PAGE_BYTES, files_in, open_store, restored, write

IDS = list(range(1000, 1100))
PAGES_OFFSET = 4096
N_BYTES = PAGES_OFFSET + 4 * PAGE_BYTES
# offsets of the header's fields
VERSION_AT, CHECKSUM_AT, CONTRACT_AT, PAGE_BYTES_AT, PAGE_POSITIONS_AT = 8, 12, 16, 20, 24
FIRST_PAGE_AT, N_PAGES_AT, N_POSITIONS_AT, DIGEST_LENGTH_AT = 28, 32, 36, 40
DIGEST_AT, LAYOUT_AT, OWNER_AT, IDS_AT = 44, 108, 172, 256
MAX_PEAK_BYTES = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A sound file in a folder of its own."""
    write(open_store(tmp_path), IDS)
    (path,) = files_in(tmp_path)
    assert path.stat().st_size == N_BYTES
    return path


def with_u32(content: bytes, at: int, value: int) -> bytes:
    """Returns the content with one field changed and the head's checksum made right again."""
    changed = bytearray(content)
    struct.pack_into("<I", changed, at, value)
    return sealed(changed)


def sealed(content: bytearray) -> bytes:
    content[CHECKSUM_AT : CHECKSUM_AT + 4] = bytes(4)
    struct.pack_into("<I", content, CHECKSUM_AT, zlib.crc32(content[:PAGES_OFFSET]))
    return bytes(content)


def refusal(path: Path) -> str:
    """Returns why a file is refused, having seen that a store that opens removes it and little memory was taken."""
    tracemalloc.start()
    with pytest.raises(StorageFault) as caught:
        read_head(path, KEY)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MAX_PEAK_BYTES
    store = open_store(path.parents[1])
    assert (store.n_segments, store.covered(IDS), store.find(IDS)) == (0, 0, [])
    assert not os.path.lexists(path)
    return str(caught.value)


@pytest.mark.parametrize("n_bytes", [0, 1, 255, 256, 400, PAGES_OFFSET - 1, PAGES_OFFSET, N_BYTES - 1])
def test_a_file_that_is_too_short_is_refused(path: Path, n_bytes: int) -> None:
    os.truncate(path, n_bytes)
    assert ("ends here" if n_bytes < 256 else f"has {n_bytes} bytes, wanted {N_BYTES}") in refusal(path)


def test_a_file_that_is_too_long_is_refused(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")
    assert f"has {N_BYTES + 1} bytes, wanted {N_BYTES}" in refusal(path)


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (0, 0x44504953, "magic"),
        (VERSION_AT, VERSION + 1, "version is 2, wanted 1"),
        (CONTRACT_AT, 4, "arithmetic contract is 4, wanted 3"),
        (PAGE_BYTES_AT, PAGE_BYTES // 2, "bytes of a page is 320, wanted 640"),
        (PAGE_POSITIONS_AT, 16, "positions of a page is 16, wanted 32"),
        (DIGEST_AT, 0x02020202, "model digest"),
        (DIGEST_LENGTH_AT, 0x0000071F, "model digest"),
        (DIGEST_LENGTH_AT, 0x00000620, "kv layout"),
        (LAYOUT_AT, 0x20323366, "kv layout"),
        (FIRST_PAGE_AT, 1, "pages 1 to 5, wanted an end at 4"),
        (FIRST_PAGE_AT, 0xFFFFFFFC, "wanted an end at 4"),
        (N_PAGES_AT, 0, "pages 0 to 0"),
        (N_PAGES_AT, 0xFFFFFFFF, "wanted an end at 4"),
        (N_POSITIONS_AT, 0, "0 positions, wanted 1 to 1048576"),
        (N_POSITIONS_AT, 0xFFFFFFFF, "4294967295 positions"),
        (N_POSITIONS_AT, 1 << 20, "wanted an end at 32768"),
    ],
)
def test_a_field_that_does_not_fit_is_refused_by_name(path: Path, at: int, value: int, reason: str) -> None:
    content = path.read_bytes()
    changed = with_u32(content, at, value)
    if at == 0:  # the last byte of the magic
        changed = content[:7] + b"\x02" + content[8:]
    path.write_bytes(changed)
    assert reason in refusal(path)


def test_a_head_that_promises_more_than_the_file_holds_is_refused_before_memory_is_taken(path: Path) -> None:
    n_positions = 1 << 20
    changed = with_u32(path.read_bytes(), N_POSITIONS_AT, n_positions)
    path.write_bytes(with_u32(changed, N_PAGES_AT, n_positions // 32))
    assert f"has {N_BYTES} bytes, wanted" in refusal(path)


@pytest.mark.parametrize("at", [OWNER_AT, IDS_AT, IDS_AT + 4 * 99, IDS_AT + 4 * 100, PAGES_OFFSET - 1, CHECKSUM_AT])
def test_a_flipped_bit_of_the_head_is_found(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)
    assert "the head has a wrong checksum" in refusal(path)


@pytest.mark.parametrize("at", [PAGES_OFFSET, PAGES_OFFSET + 2 * PAGE_BYTES + 5, N_BYTES - 1])
def test_a_flipped_bit_of_a_page_is_found_when_it_is_read(
    path: Path, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)
    store = open_store(path.parents[1])
    with pytest.raises(StorageFault, match=f"page {(at - PAGES_OFFSET) // PAGE_BYTES} has a wrong checksum"):
        restored(store, store.find(IDS))
    assert not path.exists()
    assert (store.find(IDS), store.n_bytes) == ([], 0)
    assert [str(path) in record.getMessage() for record in caplog.records] == [True]


def test_pages_that_changed_places_are_found(path: Path) -> None:
    content = path.read_bytes()
    first, second = content[PAGES_OFFSET:][:PAGE_BYTES], content[PAGES_OFFSET + PAGE_BYTES :][:PAGE_BYTES]
    path.write_bytes(content[:PAGES_OFFSET] + second + first + content[PAGES_OFFSET + 2 * PAGE_BYTES :])
    store = open_store(path.parents[1])
    with pytest.raises(StorageFault, match="page 0 has a wrong checksum"):
        restored(store, store.find(IDS))


def test_a_file_of_other_ids_put_in_its_place_is_not_read(path: Path, tmp_path: Path) -> None:
    store = open_store(tmp_path)
    found = store.find(IDS)
    write(open_store(tmp_path / "other"), [1, *IDS[1:]])
    (other,) = files_in(tmp_path / "other")
    other.replace(path)
    with pytest.raises(StorageFault, match="holds other token ids"):
        restored(store, found)
    assert not path.exists()


def test_a_file_that_shrinks_after_it_was_found_is_not_read(path: Path, tmp_path: Path) -> None:
    store = open_store(tmp_path)
    found = store.find(IDS)
    os.truncate(path, N_BYTES - PAGE_BYTES)
    with pytest.raises(StorageFault, match=f"wanted {N_BYTES}"):
        restored(store, found)
    assert not path.exists()


def test_a_link_is_removed_and_its_target_left(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    path.rename(target)
    path.symlink_to(target)
    assert "cannot be opened" in refusal(path)
    assert target.stat().st_size == N_BYTES


def test_a_pipe_does_not_hold_the_start_up(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)
    refusal(path)


def test_a_folder_with_a_files_name_is_left_alone(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.unlink()
    path.mkdir()
    store = open_store(path.parents[1])
    assert store.n_segments == 0
    assert path.is_dir()
    assert ["ignored" in record.getMessage() for record in caplog.records] == [True]
    assert write(store, [1, 2]) > 0


def test_other_files_in_the_folder_are_left_alone(path: Path) -> None:
    note = path.with_name("notes.txt")
    note.write_text("mine")
    assert open_store(path.parents[1]).covered(IDS) == 100
    assert note.read_text() == "mine"


def test_each_refused_file_is_named_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.truncate(path, 300)
    open_store(path.parents[1])
    open_store(path.parents[1])
    assert [str(path) in record.getMessage() for record in caplog.records] == [True]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(st.tuples(st.integers(0, 260), st.integers(1, 255)), max_size=6),
    n_bytes=st.sampled_from([N_BYTES, N_BYTES - 1, PAGES_OFFSET, 300, 256, 100]),
    is_sealed=st.booleans(),
)
def test_any_header_is_read_right_or_refused(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], n_bytes: int, is_sealed: bool
) -> None:
    folder = tmp_path_factory.getbasetemp() / "snapshot-fuzz"
    sound = folder / "sound"
    if not sound.exists():
        write(open_store(folder / "store"), IDS)
        files_in(folder / "store")[0].rename(sound)
    content = bytearray(sound.read_bytes())
    for at, flipped in changes:
        content[at] ^= flipped
    changed = folder / "changed"
    changed.write_bytes((sealed(content) if is_sealed else bytes(content))[:n_bytes])
    tracemalloc.start()
    try:
        head: SnapshotHead | None = read_head(changed, KEY)
    except StorageFault:
        head = None
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MAX_PEAK_BYTES
    if head is not None:
        assert (head.first_page, len(head.ids), len(head.checksums), head.n_bytes) == (0, 400, 4, n_bytes)
    if not any(at < OWNER_AT for at, _ in changes) and is_sealed and n_bytes == N_BYTES:
        assert head is not None
