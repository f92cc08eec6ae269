"""Long metadata arrays: iteration, indexing, and files that change under them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest

from sipd.errors import GgufError
from sipd.weights.gguf import read_gguf
from sipd.weights.gguf_array import GgufArray, ValueType
from tests.builders import GgufWriter, Typed

WORDS = [f"wörd{i}" * (i % 7) for i in range(3000)]


def array_of(path: Path, values: Sequence[object], value_type: ValueType) -> GgufArray:
    writer = GgufWriter()
    writer.add("key", Typed(values, value_type))
    found = read_gguf(writer.write(path)).metadata["key"]
    assert isinstance(found, GgufArray)
    return found


@pytest.fixture
def words(tmp_path: Path) -> GgufArray:
    return array_of(tmp_path / "a.gguf", list(WORDS), ValueType.STRING)


def test_strings_come_in_order(words: GgufArray) -> None:
    assert list(words) == WORDS


def test_an_array_can_be_iterated_again(words: GgufArray) -> None:
    assert list(words) == list(words)


def test_the_length_needs_no_reading(tmp_path: Path, words: GgufArray) -> None:
    (tmp_path / "a.gguf").unlink()
    assert len(words) == len(WORDS)


@pytest.mark.parametrize("index", [0, 1, 511, 512, 513, 2999, -1, -3000])
def test_a_string_is_found_by_index(words: GgufArray, index: int) -> None:
    assert words[index] == WORDS[index]


@pytest.mark.parametrize("index", [3000, -3001])
def test_an_index_outside_the_array_is_an_index_error(words: GgufArray, index: int) -> None:
    with pytest.raises(IndexError):
        words[index]


@pytest.mark.parametrize(
    "chosen", [slice(5, 1500, 7), slice(1500, 5, -7), slice(None), slice(9, 9), slice(-3, None), slice(None, None, -1)]
)
def test_a_slice_is_the_slice_of_the_list(words: GgufArray, chosen: slice) -> None:
    assert words[chosen] == tuple(WORDS[chosen])


def test_membership_is_that_of_the_list(words: GgufArray) -> None:
    assert WORDS[1234] in words
    assert "absent" not in words


@pytest.mark.parametrize(
    ("value_type", "values"),
    [
        (ValueType.FLOAT32, [i / 4 for i in range(20000)]),
        (ValueType.INT32, [i - 5000 for i in range(20000)]),
        (ValueType.BOOL, [i % 3 == 0 for i in range(20000)]),
    ],
)
def test_numbers_come_in_order(tmp_path: Path, value_type: ValueType, values: list[object]) -> None:
    found = array_of(tmp_path / "a.gguf", values, value_type)
    assert list(found) == values
    assert found[12345] == values[12345]
    assert found.element_type is value_type


def test_strings_longer_than_the_window_are_read(tmp_path: Path) -> None:
    values = [str(i) * 60_000 if i % 10 == 0 else str(i) for i in range(70)]
    found = array_of(tmp_path / "a.gguf", list(values), ValueType.STRING)
    assert list(found) == values
    assert found[65] == "65"


def test_strings_at_every_distance_from_the_windows_end_are_read(tmp_path: Path) -> None:
    values = ["x" * (i % 23) for i in range(40_000)]
    found = array_of(tmp_path / "a.gguf", list(values), ValueType.STRING)
    assert list(found) == values
    assert found[39_999] == values[39_999]


def test_a_large_vocabulary_costs_little_memory(tmp_path: Path) -> None:
    writer = GgufWriter()
    writer.add("key", [f"token{i}" for i in range(100_000)])
    path = writer.write(tmp_path / "a.gguf")
    tracemalloc.start()
    try:
        found = read_gguf(path).metadata["key"]
        assert isinstance(found, GgufArray)
        assert sum(1 for _ in found) == 100_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_a_replaced_file_is_noticed(tmp_path: Path, words: GgufArray) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(GgufError, match="changed after its header was read"):
        list(words)


def test_a_removed_file_is_named(tmp_path: Path, words: GgufArray) -> None:
    (tmp_path / "a.gguf").unlink()
    with pytest.raises(GgufError, match=r"a\.gguf: cannot be opened: No such file"):
        list(words)


@pytest.mark.parametrize("place", [0, 99])
def test_a_string_that_is_not_utf8_is_refused_when_it_is_read(tmp_path: Path, place: int) -> None:
    values: list[object] = ["fine"] * 100
    values[place] = b"\xff\xfe"
    found = array_of(tmp_path / "a.gguf", values, ValueType.STRING)
    with pytest.raises(GgufError, match="element of 'key' is not UTF-8"):
        list(found)


def test_a_bool_of_two_is_refused_when_it_is_read(tmp_path: Path) -> None:
    found = array_of(tmp_path / "a.gguf", [0] * 99 + [2], ValueType.BOOL)
    with pytest.raises(GgufError, match="holds 2 as a BOOL"):
        list(found)


def test_the_printed_form_is_short(words: GgufArray) -> None:
    assert repr(words) == "GgufArray('key', STRING, 3000 elements)"
