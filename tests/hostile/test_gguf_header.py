"""Damaged or hostile GGUF headers: magic, version, counts, strings, metadata types, alignment."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import pytest

from sipd.errors import GgufError
from sipd.weights.gguf import read_gguf
from sipd.weights.gguf_array import ValueType
from tests.builders import GgufWriter, Typed, encode_string


def refuse(writer: GgufWriter, directory: Path, match: str) -> None:
    path = writer.write(directory / "model.gguf")
    with pytest.raises(GgufError, match=match) as fault:
        read_gguf(path)
    assert str(path) in str(fault.value)


def raw_array(element_type: int, length: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IIQ", ValueType.ARRAY, element_type, length) + payload


def test_a_wrong_magic_is_named(tmp_path: Path) -> None:
    refuse(GgufWriter(magic=b"GGML"), tmp_path, "at byte 0: found b'GGML', wanted b'GGUF'")


def test_big_endian_is_named_by_its_version(tmp_path: Path) -> None:
    refuse(GgufWriter(byte_order=">"), tmp_path, "big-endian GGUF is not supported")


def test_big_endian_is_named_by_its_magic(tmp_path: Path) -> None:
    refuse(GgufWriter(magic=b"FUGG"), tmp_path, "big-endian GGUF is not supported")


@pytest.mark.parametrize("version", [0, 1, 4, 2**32 - 1])
def test_an_unknown_version_is_named(tmp_path: Path, version: int) -> None:
    refuse(GgufWriter(version=version), tmp_path, f"at byte 4: found GGUF version {version}, wanted 2 or 3")


@pytest.mark.parametrize("count", [1, 2**31 - 1, 2**63, 2**64 - 1])
def test_more_tensors_than_the_file_can_hold_are_refused(tmp_path: Path, count: int) -> None:
    refuse(GgufWriter(n_tensors=count), tmp_path, f"found {count} tensors, which need 33 bytes each; 8 bytes are left")


@pytest.mark.parametrize("count", [1, 2**31 - 1, 2**63, 2**64 - 1])
def test_more_metadata_than_the_file_can_hold_is_refused(tmp_path: Path, count: int) -> None:
    refuse(GgufWriter(n_entries=count), tmp_path, f"found {count} metadata entries")


def test_a_count_that_the_file_could_hold_but_no_model_has_is_refused(tmp_path: Path) -> None:
    path = GgufWriter(n_entries=70_000).write(tmp_path / "model.gguf")
    path.write_bytes(path.read_bytes() + bytes(70_000 * 14))
    with pytest.raises(GgufError, match="found 70000 metadata entries, wanted at most 65536"):
        read_gguf(path)


@pytest.mark.parametrize("length", [100, 2**40, 2**64 - 1])
def test_a_key_longer_than_the_file_is_refused(tmp_path: Path, length: int) -> None:
    writer = GgufWriter(n_entries=1)
    path = writer.write(tmp_path / "model.gguf")
    path.write_bytes(path.read_bytes() + struct.pack("<Q", length) + bytes(50))
    with pytest.raises(GgufError, match=f"at byte 24: a metadata key is said to have {length} bytes, 50 are left"):
        read_gguf(path)


def test_a_key_longer_than_the_specification_allows_is_refused(tmp_path: Path) -> None:
    writer = GgufWriter()
    writer.add("k" * 65536, 1)
    refuse(writer, tmp_path, "a metadata key has 65536 bytes, wanted at most 65535")


def test_an_empty_key_is_refused(tmp_path: Path) -> None:
    writer = GgufWriter()
    writer.add("", 1)
    refuse(writer, tmp_path, "at byte 24: found an empty metadata key")


def test_a_key_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    writer = GgufWriter()
    writer.add(b"\xff", 1)
    refuse(writer, tmp_path, "a metadata key is not UTF-8")


def test_a_value_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    writer = GgufWriter()
    writer.add("general.name", b"\xc3")
    refuse(writer, tmp_path, "the value of 'general.name' is not UTF-8")


def test_a_key_that_appears_twice_is_refused(tmp_path: Path) -> None:
    writer = GgufWriter()
    writer.add("llama.block_count", 1)
    writer.add("llama.block_count", 2)
    refuse(writer, tmp_path, "metadata key 'llama.block_count' appears twice")


@pytest.mark.parametrize("value_type", [13, 255, 2**32 - 1])
def test_an_unknown_value_type_is_named(tmp_path: Path, value_type: int) -> None:
    writer = GgufWriter()
    writer.add_raw("key", struct.pack("<IQ", value_type, 0))
    refuse(writer, tmp_path, f"'key' has value type {value_type}, wanted 0 to 12")


def test_a_bool_of_two_is_refused(tmp_path: Path) -> None:
    writer = GgufWriter()
    writer.add("tokenizer.ggml.add_bos_token", Typed(2, ValueType.BOOL))
    refuse(writer, tmp_path, "'tokenizer.ggml.add_bos_token' holds 2 as a BOOL, wanted 0 or 1")


@pytest.mark.parametrize("length", [65, 2**31 - 1, 2**63, 2**64 - 1])
def test_an_array_of_numbers_longer_than_the_file_is_refused(tmp_path: Path, length: int) -> None:
    writer = GgufWriter()
    writer.add_raw("key", raw_array(ValueType.INT32, length, bytes(16)))
    refuse(writer, tmp_path, f"'key' with {length} elements takes {4 * length} bytes, 16 are left")


@pytest.mark.parametrize("length", [65, 2**31 - 1, 2**63, 2**64 - 1])
def test_an_array_of_strings_longer_than_the_file_is_refused(tmp_path: Path, length: int) -> None:
    writer = GgufWriter()
    writer.add_raw("key", raw_array(ValueType.STRING, length, encode_string("a")))
    refuse(writer, tmp_path, f"'key' is said to have {length} strings, 9 bytes are left")


@pytest.mark.parametrize("length", [1, 2**32, 2**64 - 1000])
@pytest.mark.parametrize("place", [0, 50, 99])
def test_a_string_in_an_array_that_runs_past_the_file_is_refused(tmp_path: Path, length: int, place: int) -> None:
    strings = [encode_string("") for _ in range(100)]
    strings[place] = struct.pack("<Q", length + 8 * (99 - place))
    writer = GgufWriter()
    writer.add_raw("key", raw_array(ValueType.STRING, 100, b"".join(strings)))
    refuse(writer, tmp_path, "an element of 'key'")


def test_arrays_nested_too_deeply_are_refused(tmp_path: Path) -> None:
    writer = GgufWriter()
    deep = struct.pack("<IQ", ValueType.ARRAY, 1) * 2000
    writer.add_raw("key", struct.pack("<I", ValueType.ARRAY) + deep + struct.pack("<IQ", ValueType.UINT8, 0))
    refuse(writer, tmp_path, "'key' nests arrays deeper than 4")


def test_a_long_array_of_arrays_is_refused(tmp_path: Path) -> None:
    writer = GgufWriter()
    writer.add("key", [[1]] * 65)
    refuse(writer, tmp_path, "'key' is an array of 65 arrays, wanted at most 64")


@pytest.mark.parametrize("alignment", [0, 1, 4, 24, 2**21, Typed(-32, ValueType.INT32), "32", 32.0, True])
def test_an_alignment_that_is_no_power_of_two_in_range_is_refused(tmp_path: Path, alignment: object) -> None:
    writer = GgufWriter()
    writer.add("general.alignment", alignment)
    refuse(writer, tmp_path, "general.alignment is .*, wanted a power of two from 8 to 1048576")


def test_metadata_that_would_fill_memory_are_refused_while_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    entry = struct.pack("<Q", 1) + b"k" + struct.pack("<IQ", ValueType.STRING, 2**33)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + entry)
    with path.open("r+b") as file:
        file.truncate(2**34)  # sparse: sixteen gigabytes that take no room
    tracemalloc.start()
    try:
        with pytest.raises(GgufError, match="the value of 'k' has 8589934592 bytes, wanted at most 33554432"):
            read_gguf(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


def test_many_strings_that_would_fill_memory_together_are_refused(tmp_path: Path) -> None:
    writer = GgufWriter()
    for i in range(3):
        writer.add(f"key{i}", "x" * (12 << 20))
    refuse(writer, tmp_path, "metadata beside long arrays exceeds 33554432 bytes")
