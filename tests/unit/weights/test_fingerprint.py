"""Two versions of a checkpoint have two fingerprints, the same version always the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sipd.errors import ModelError
from sipd.weights.fingerprint import fingerprint

SIZE = 3_000_000
TIME_NS = 1_700_000_000_123_456_789


def made(path: Path, content: bytes | bytearray, time_ns: int = TIME_NS) -> Path:
    path.write_bytes(content)
    os.utime(path, ns=(time_ns, time_ns))
    return path


@pytest.fixture
def content() -> bytearray:
    return bytearray(i * i % 251 for i in range(SIZE))


def test_the_same_files_have_the_same_fingerprint_wherever_they_are(tmp_path: Path, content: bytearray) -> None:
    (tmp_path / "elsewhere").mkdir()
    one, other = made(tmp_path / "m", content), made(tmp_path / "elsewhere" / "m", content)
    assert fingerprint([one]) == fingerprint([other])
    assert len(fingerprint([one])) == 32


@pytest.mark.parametrize("at", [0, 4095, SIZE - 4096, SIZE - 1])
def test_a_change_at_either_end_is_seen_though_size_and_time_are_the_same(
    tmp_path: Path, content: bytearray, at: int
) -> None:
    before = fingerprint([made(tmp_path / "m", content)])
    content[at] ^= 1
    assert fingerprint([made(tmp_path / "m", content)]) != before


def test_other_content_of_the_same_size_and_time_is_seen(tmp_path: Path, content: bytearray) -> None:
    before = fingerprint([made(tmp_path / "m", content)])
    middle = SIZE // 3
    content[middle : middle + 2 * SIZE // 63] = bytes(2 * SIZE // 63)
    assert fingerprint([made(tmp_path / "m", content)]) != before


def test_a_nanosecond_is_another_version(tmp_path: Path, content: bytearray) -> None:
    before = fingerprint([made(tmp_path / "m", content)])
    assert fingerprint([made(tmp_path / "m", content, TIME_NS + 1)]) != before


def test_a_name_is_part_of_the_version(tmp_path: Path, content: bytearray) -> None:
    assert fingerprint([made(tmp_path / "m", content)]) != fingerprint([made(tmp_path / "n", content)])


def test_what_one_file_has_more_and_another_less_is_seen(tmp_path: Path) -> None:
    before = fingerprint([made(tmp_path / "a", b"abc"), made(tmp_path / "b", b"def")])
    assert fingerprint([made(tmp_path / "a", b"abcd"), made(tmp_path / "b", b"ef")]) != before


def test_the_order_of_files_is_part_of_the_version(tmp_path: Path) -> None:
    files = [made(tmp_path / "a", b"abc"), made(tmp_path / "b", b"def")]
    assert fingerprint(files) != fingerprint(files[::-1])


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097])
def test_a_small_file_has_a_fingerprint_too(tmp_path: Path, size: int) -> None:
    one = fingerprint([made(tmp_path / "m", bytes(size))])
    assert one == fingerprint([tmp_path / "m"])
    if size:
        assert one != fingerprint([made(tmp_path / "m", bytes(size - 1) + b"\1")])


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="gone: cannot be opened"):
        fingerprint([tmp_path / "gone"])


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="found a directory"):
        fingerprint([tmp_path])
