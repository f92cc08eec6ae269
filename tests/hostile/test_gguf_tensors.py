"""Damaged or hostile GGUF tensor lists: names, shapes, types, offsets, overlaps, gaps, trailing bytes."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from sipd.errors import GgufError, UnsupportedModel
from sipd.weights.gguf import read_gguf
from sipd.weights.tensor_table import QuantType
from tests.builders import GgufWriter, build_gguf

F32 = QuantType.F32.type_id
Q8_0 = QuantType.Q8_0.type_id


def refuse(writer: GgufWriter, directory: Path, match: str) -> None:
    path = writer.write(directory / "model.gguf")
    with pytest.raises(GgufError, match=match) as fault:
        read_gguf(path)
    assert str(path) in str(fault.value)


def test_a_tensor_name_that_appears_twice_is_refused(tmp_path: Path) -> None:
    writer = GgufWriter()
    writer.add_tensor("a", (8,), F32, bytes(32))
    writer.add_tensor("a", (8,), F32, bytes(32))
    refuse(writer, tmp_path, "tensor 'a' appears twice")


def test_a_tensor_without_a_name_is_refused(tmp_path: Path) -> None:
    writer = GgufWriter()
    writer.add_tensor("", (8,), F32, bytes(32))
    refuse(writer, tmp_path, "found a tensor without a name")


def test_a_name_longer_than_64_bytes_is_refused(tmp_path: Path) -> None:
    writer = GgufWriter()
    writer.add_tensor("n" * 65, (8,), F32, bytes(32))
    refuse(writer, tmp_path, "a tensor name has 65 bytes, wanted at most 64")


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    writer = GgufWriter()
    writer.add_tensor(b"\x80", (8,), F32, bytes(32))
    refuse(writer, tmp_path, "a tensor name is not UTF-8")


@pytest.mark.parametrize("n_dims", [0, 5, 2**32 - 1])
def test_a_wrong_number_of_dimensions_is_refused(tmp_path: Path, n_dims: int) -> None:
    writer = GgufWriter()
    writer.add_tensor("a", (8,), F32, bytes(32), n_dims=n_dims)
    refuse(writer, tmp_path, f"tensor 'a' has {n_dims} dimensions, wanted 1 to 4")


@pytest.mark.parametrize(
    "shape", [(0,), (8, 0), (2**48,), (2**24, 2**24), (2**32, 2**32), (2**63, 2), (2**64 - 1,) * 4]
)
def test_a_shape_without_or_with_too_many_elements_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    writer = GgufWriter()
    writer.add_tensor("a", shape, F32, bytes(32))
    refuse(writer, tmp_path, r"tensor 'a' has shape .*fewer than 2\^48 elements")


def test_dimensions_of_two_to_the_31_are_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    writer = GgufWriter()
    writer.add_tensor("token_embd.weight", (2, 2**31 - 1), F32, bytes(32))
    refuse(writer, tmp_path, "tensor 'token_embd.weight' of 17179869176 bytes has offset 0; the whole file has")


@pytest.mark.parametrize("columns", [1, 31, 33, 63])
def test_rows_that_are_no_whole_number_of_blocks_are_refused(tmp_path: Path, columns: int) -> None:
    writer = GgufWriter()
    writer.add_tensor("a", (32, columns), Q8_0, bytes(34 * columns))
    refuse(writer, tmp_path, f"tensor 'a' has rows of {columns} elements, Q8_0 wants a multiple of 32")


@pytest.mark.parametrize("type_id", [31, 36, 42, 1000, 2**32 - 1])
def test_an_unknown_type_is_named_by_its_number(tmp_path: Path, type_id: int) -> None:
    writer = GgufWriter()
    writer.add_tensor("a", (256,), type_id, bytes(256))
    refuse(writer, tmp_path, f"tensor 'a' has the unknown type {type_id}; wanted F32, F16")


@pytest.mark.parametrize(
    ("type_id", "name"),
    [(10, "Q2_K"), (20, "IQ4_NL"), (39, "MXFP4"), (40, "NVFP4"), (41, "Q1_0"), (26, "I32")],
)
def test_a_type_that_is_not_run_is_named(tmp_path: Path, type_id: int, name: str) -> None:
    writer = GgufWriter()
    writer.add_tensor("a", (256,), type_id, bytes(256))
    with pytest.raises(UnsupportedModel, match=f"tensor 'a' is stored as {name}, not supported"):
        read_gguf(writer.write(tmp_path / "model.gguf"))


@pytest.mark.parametrize("offset", [1, 4, 31, 2**63 + 1])
def test_an_offset_that_is_not_aligned_is_refused(tmp_path: Path, offset: int) -> None:
    writer = GgufWriter()
    writer.add_tensor("a", (8,), F32, bytes(32), offset=offset)
    refuse(writer, tmp_path, f"tensor 'a' has offset {offset}, wanted a multiple of 32")


@pytest.mark.parametrize("offset", [2**20, 2**63, 2**64 - 32])
def test_an_offset_outside_the_file_is_refused_without_wrapping(tmp_path: Path, offset: int) -> None:
    writer = GgufWriter()
    writer.add_tensor("a", (8,), F32, bytes(32), offset=offset)
    refuse(writer, tmp_path, f"tensor 'a' of 32 bytes has offset {offset}; the whole file has")


def test_a_tensor_that_runs_past_the_end_is_refused(tmp_path: Path) -> None:
    writer = GgufWriter()
    writer.add_tensor("a", (16,), F32, bytes(32))
    refuse(writer, tmp_path, "tensor 'a' of 64 bytes runs past the end of the file")


@pytest.mark.parametrize("offset", [0, 32])
def test_overlapping_tensors_are_refused(tmp_path: Path, offset: int) -> None:
    writer = GgufWriter()
    writer.add_tensor("a", (16,), F32, bytes(64))
    writer.add_tensor("b", (16,), F32, bytes(64), offset=offset)
    refuse(writer, tmp_path, "tensor 'b' overlaps what lies before it")


def test_a_gap_between_tensors_is_refused(tmp_path: Path) -> None:
    writer = GgufWriter()
    writer.add_tensor("a", (8,), F32, bytes(32))
    writer.add_tensor("b", (8,), F32, bytes(96), offset=64)
    refuse(writer, tmp_path, "tensor 'b' leaves a gap before it")


def test_a_gap_before_the_first_tensor_is_refused(tmp_path: Path) -> None:
    writer = GgufWriter()
    writer.add_tensor("a", (8,), F32, bytes(64), offset=32)
    refuse(writer, tmp_path, "tensor 'a' leaves a gap before it")


@pytest.mark.parametrize("n_bytes", [1, 4096])
def test_trailing_bytes_are_refused_with_their_count(tmp_path: Path, n_bytes: int) -> None:
    path = build_gguf(tmp_path / "model.gguf")
    path.write_bytes(path.read_bytes() + bytes(n_bytes))
    with pytest.raises(GgufError, match=f"found {n_bytes} trailing bytes, wanted padding to 32 at most"):
        read_gguf(path)


def test_trailing_bytes_of_a_file_without_tensors_are_refused(tmp_path: Path) -> None:
    path = GgufWriter().write(tmp_path / "model.gguf")
    path.write_bytes(path.read_bytes() + bytes(9))
    with pytest.raises(GgufError, match="found 9 trailing bytes"):
        read_gguf(path)


def test_a_file_cut_in_its_last_tensor_is_refused(tmp_path: Path) -> None:
    path = build_gguf(tmp_path / "model.gguf", tied=True)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(GgufError, match=r"tensor 'output_norm\.weight' of 256 bytes runs past the end of the file"):
        read_gguf(path)


def test_a_file_cut_in_its_tensor_list_names_what_is_missing(tmp_path: Path) -> None:
    writer = GgufWriter()
    writer.add_tensor("a", (8,), F32, bytes(32))
    writer.add_tensor("b", (8,), F32, bytes(32))
    path = tmp_path / "model.gguf"
    path.write_bytes(writer.to_bytes()[: 24 + 33 + 32])
    with pytest.raises(GgufError, match="the file ends inside the offset of tensor 'b': wanted 8 bytes, found 7"):
        read_gguf(path)


def test_a_lying_number_of_tensors_is_refused(tmp_path: Path) -> None:
    writer = GgufWriter(n_tensors=1)
    writer.add_tensor("a", (8,), F32, struct.pack("<8f", *range(8)))
    writer.add_tensor("b", (8,), F32, bytes(32))
    refuse(writer, tmp_path, "trailing bytes")
