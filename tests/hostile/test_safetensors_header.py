"""Damaged or hostile safetensors headers: length, JSON, types, shapes, offsets, overlaps, holes, trailing bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sipd.errors import SafetensorsError, UnsupportedModel
from sipd.weights.safetensors import read_safetensors
from tests.builders import build_safetensors, safetensors_bytes

Refuse = Callable[[bytes, str], None]


@pytest.fixture
def refuse(tmp_path: Path) -> Refuse:
    build_safetensors(tmp_path)
    path = tmp_path / "model.safetensors"

    def check(content: bytes, match: str) -> None:
        path.write_bytes(content)
        with pytest.raises(SafetensorsError, match=match) as fault:
            read_safetensors(tmp_path)
        assert str(path) in str(fault.value)
        assert "\n" not in str(fault.value)

    return check


def entry(shape: object = (2,), begin: object = 0, end: object = 8, dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize("n_bytes", [0, 1, 7])
def test_a_file_without_a_length_is_refused(refuse: Refuse, n_bytes: int) -> None:
    refuse(bytes(n_bytes), f"found {n_bytes} bytes, wanted at least 8")


@pytest.mark.parametrize("length", [100, 2**40, 2**63, 2**64 - 1])
def test_a_header_longer_than_the_file_is_refused(refuse: Refuse, length: int) -> None:
    content = safetensors_bytes({"a": entry()}, bytes(8), header_bytes=length)
    refuse(content, f"the header is said to have {length} bytes, {len(content) - 8} are left")


def test_a_header_longer_than_the_cap_is_refused(refuse: Refuse) -> None:
    refuse(safetensors_bytes(b"{}" + b" " * (16 << 20), b""), "the header has 16777218 bytes, wanted at most 16777216")


def test_a_git_lfs_pointer_is_told_from_weights(refuse: Refuse) -> None:
    refuse(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "found a Git LFS pointer")


@pytest.mark.parametrize("header", [b"", b"[]", b" {}", b"null", b'"a"'])
def test_a_header_that_is_no_object_is_refused(refuse: Refuse, header: bytes) -> None:
    refuse(safetensors_bytes(header, b""), "the header begins with .*, wanted a JSON object")


@pytest.mark.parametrize("header", [b"{", b'{"a":}', b"{}x", b'{"\xff":1}', b'{"a":' + b"1" * 5000 + b"}"])
def test_a_header_that_is_no_json_is_refused(refuse: Refuse, header: bytes) -> None:
    refuse(safetensors_bytes(header, b""), "the header is not JSON")


def test_a_header_nested_without_end_is_refused(refuse: Refuse) -> None:
    refuse(safetensors_bytes(b'{"a":' + b"[" * 100_000, b""), "the header is nested too deeply")


def test_a_tensor_that_appears_twice_is_refused(refuse: Refuse) -> None:
    text = json.dumps(entry()).encode()
    refuse(safetensors_bytes(b'{"a":' + text + b',"a":' + text + b"}", bytes(8)), "the header holds the key 'a' twice")


@pytest.mark.parametrize("remarks", [[], "pt", {"a": 1}, {"a": {"b": "c"}}, None])
def test_remarks_that_are_no_strings_are_refused(refuse: Refuse, remarks: object) -> None:
    refuse(safetensors_bytes({"__metadata__": remarks}, b""), "__metadata__ holds something else than strings")


def test_a_tensor_without_a_name_is_refused(refuse: Refuse) -> None:
    refuse(safetensors_bytes({"": entry()}, bytes(8)), "tensor '' has an empty name")


@pytest.mark.parametrize("described", [1, [], {}, {"dtype": "F32", "shape": [2]}, entry() | {"more": 1}, "x" * 200])
def test_a_tensor_described_otherwise_is_refused(refuse: Refuse, described: object) -> None:
    refuse(safetensors_bytes({"a": described}, bytes(8)), "tensor 'a' is described by .*, wanted exactly dtype")


@pytest.mark.parametrize("dtype", ["F31", "f32", "", 1, None, []])
def test_an_unknown_dtype_is_named(refuse: Refuse, dtype: object) -> None:
    refuse(safetensors_bytes({"a": entry(dtype=dtype)}, bytes(8)), "tensor 'a' has the unknown dtype")


@pytest.mark.parametrize("dtype", ["I64", "F8_E4M3", "F64", "U8"])
def test_a_dtype_that_is_not_run_is_named(tmp_path: Path, dtype: str) -> None:
    build_safetensors(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes({"a": entry(dtype=dtype)}, bytes(8)))
    with pytest.raises(
        UnsupportedModel, match=f"tensor 'a' is stored as {dtype}, not supported; wanted F32, F16, BF16"
    ):
        read_safetensors(tmp_path)


@pytest.mark.parametrize("shape", [[], [1, 1, 1, 1, 2], "2", 2, [2.0], [True, 2], [-2], ["2"], [2**63], None])
def test_a_shape_that_is_none_is_refused(refuse: Refuse, shape: object) -> None:
    refuse(safetensors_bytes({"a": entry(shape)}, bytes(8)), "tensor 'a' has shape .*, wanted 1 to 4 whole numbers")


@pytest.mark.parametrize("shape", [[0], [2, 0], [2**48], [2**24, 2**24], [2**62, 2**62, 2**62, 2**62]])
def test_a_shape_without_or_with_too_many_elements_is_refused(refuse: Refuse, shape: object) -> None:
    refuse(safetensors_bytes({"a": entry(shape)}, bytes(8)), r"tensor 'a' has shape .* fewer than 2\^48 elements")


@pytest.mark.parametrize(
    "span", [[], [0], [0, 8, 16], [8, 0], [-8, 0], [0.0, 8.0], ["0", "8"], {"0": 8}, None, [0, 2**64]]
)
def test_offsets_that_are_none_are_refused(refuse: Refuse, span: object) -> None:
    described = {"dtype": "F32", "shape": [2], "data_offsets": span}
    refuse(safetensors_bytes({"a": described}, bytes(8)), "tensor 'a' has data_offsets")


@pytest.mark.parametrize("shape", [[1000, 1000], [1], [3]])
def test_a_shape_that_does_not_fill_its_span_is_refused(refuse: Refuse, shape: list[int]) -> None:
    refuse(safetensors_bytes({"a": entry(shape)}, bytes(8)), r"tensor 'a' of shape .* needs \d+ bytes")


def test_offsets_past_the_end_of_the_file_are_refused(refuse: Refuse) -> None:
    refuse(safetensors_bytes({"a": entry([4], 0, 16)}, bytes(8)), "tensor 'a' ends at byte .*, the file at byte")


@pytest.mark.parametrize("begin", [0, 4])
def test_overlapping_tensors_are_refused(refuse: Refuse, begin: int) -> None:
    header = {"a": entry([2], 0, 8), "b": entry([2], begin, begin + 8)}
    refuse(safetensors_bytes(header, bytes(16)), "tensor 'b' overlaps what lies before it")


@pytest.mark.parametrize("header", [{"a": entry([2], 0, 8), "b": entry([2], 12, 20)}, {"b": entry([2], 12, 20)}])
def test_a_hole_is_refused(refuse: Refuse, header: dict[str, object]) -> None:
    refuse(safetensors_bytes(header, bytes(20)), "tensor 'b' leaves a hole before it")


@pytest.mark.parametrize("n_bytes", [1, 4096])
def test_trailing_bytes_are_refused_with_their_count(refuse: Refuse, n_bytes: int) -> None:
    refuse(safetensors_bytes({"a": entry()}, bytes(8 + n_bytes)), f"found {n_bytes} trailing bytes after the last")


def test_an_empty_header_before_data_is_refused(refuse: Refuse) -> None:
    refuse(safetensors_bytes({}, bytes(8)), "found 8 trailing bytes")
