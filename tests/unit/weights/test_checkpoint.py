"""Opening a model by its path: a GGUF file, a directory, and split GGUF files."""

from __future__ import annotations

from pathlib import Path

import pytest

from sipd.errors import GgufError, ModelError
from sipd.weights.checkpoint import open_checkpoint
from sipd.weights.gguf_array import ValueType
from sipd.weights.tensor_table import QuantType
from tests.builders import GgufWriter, Typed, build_gguf, build_safetensors


def write_part(directory: Path, number: int, n_parts: int, names: str = "", **override: object) -> Path:
    """Writes one part of a split model; `override` replaces split.no, split.count or split.tensors.count."""
    writer = GgufWriter()
    if number == 0:
        writer.add("general.architecture", "llama")
    split: dict[str, object] = {
        "split.no": Typed(number, ValueType.UINT16),
        "split.count": Typed(n_parts, ValueType.UINT16),
        "split.tensors.count": Typed(4, ValueType.INT32),
    }
    for key, value in split.items():
        writer.add(key, override.get(key.rsplit(".", 1)[1], value))
    for name in names:
        writer.add_tensor(name, (8,), QuantType.F32.type_id, bytes([ord(name)] * 32))
    return writer.write(directory / f"model-{number + 1:05}-of-{n_parts:05}.gguf")


def test_a_gguf_file_is_opened(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(build_gguf(tmp_path / "a.gguf"))
    assert checkpoint.file_format == "gguf"
    assert checkpoint.path == tmp_path / "a.gguf"


def test_a_gguf_file_is_known_by_its_content(tmp_path: Path) -> None:
    assert open_checkpoint(build_gguf(tmp_path / "sha256-0123")).file_format == "gguf"


def test_a_directory_is_opened(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(build_safetensors(tmp_path))
    assert checkpoint.file_format == "safetensors"
    assert checkpoint.path == tmp_path


def test_the_parts_of_a_split_model_are_joined(tmp_path: Path) -> None:
    first = write_part(tmp_path, 0, 3, "ab")
    write_part(tmp_path, 1, 3, "c")
    write_part(tmp_path, 2, 3, "d")
    checkpoint = open_checkpoint(first)
    assert len(checkpoint.files) == len(checkpoint.file_sizes) == 3
    assert [tensor.file_index for tensor in checkpoint.tensors.values()] == [0, 0, 1, 2]
    for name, tensor in checkpoint.tensors.items():
        content = checkpoint.files[tensor.file_index].read_bytes()
        assert content[tensor.file_offset : tensor.file_offset + 32] == name.encode() * 32
    assert checkpoint.metadata["general.architecture"] == "llama"


def test_a_first_part_without_tensors_is_joined(tmp_path: Path) -> None:
    first = write_part(tmp_path, 0, 2)
    write_part(tmp_path, 1, 2, "abcd")
    assert list(open_checkpoint(first).tensors) == list("abcd")


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    first = write_part(tmp_path, 0, 2, "abcd")
    with pytest.raises(GgufError, match=r"model-00002-of-00002\.gguf: cannot be opened"):
        open_checkpoint(first)


def test_a_later_part_is_refused_in_place_of_the_first(tmp_path: Path) -> None:
    write_part(tmp_path, 0, 2, "ab")
    second = write_part(tmp_path, 1, 2, "cd")
    with pytest.raises(GgufError, match=r"wanted the first part, named \.\.\.-00001-of-00002\.gguf"):
        open_checkpoint(second)


def test_a_renamed_first_part_is_refused(tmp_path: Path) -> None:
    path = write_part(tmp_path, 0, 2, "ab").rename(tmp_path / "model.gguf")
    with pytest.raises(GgufError, match="wanted the first part"):
        open_checkpoint(path)


def test_a_part_of_another_split_is_refused(tmp_path: Path) -> None:
    first = write_part(tmp_path, 0, 2, "ab")
    write_part(tmp_path, 1, 2, "cd", no=0)
    with pytest.raises(GgufError, match=r"split\.no and split\.count are \(0, 2\), wanted \(1, 2\)"):
        open_checkpoint(first)


def test_a_tensor_in_two_parts_is_refused(tmp_path: Path) -> None:
    first = write_part(tmp_path, 0, 2, "ab")
    write_part(tmp_path, 1, 2, "bc")
    with pytest.raises(GgufError, match="tensor 'b' is also in an earlier part"):
        open_checkpoint(first)


def test_a_wrong_number_of_tensors_over_all_parts_is_refused(tmp_path: Path) -> None:
    first = write_part(tmp_path, 0, 2, "ab")
    write_part(tmp_path, 1, 2, "c")
    with pytest.raises(GgufError, match=r"split\.tensors\.count is 4, the parts hold 3"):
        open_checkpoint(first)


@pytest.mark.parametrize("count", [60_000, -1, "2", True])
def test_a_split_count_that_is_none_is_refused(tmp_path: Path, count: object) -> None:
    first = write_part(tmp_path, 0, 2, "abcd", count=count)
    with pytest.raises(ModelError, match=r"split\.count is .*, wanted a number up to 1024"):
        open_checkpoint(first)


def test_a_model_split_into_one_is_a_plain_file(tmp_path: Path) -> None:
    path = write_part(tmp_path, 0, 1, "abcd")
    assert len(open_checkpoint(path).files) == 1
