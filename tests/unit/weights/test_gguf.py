"""The GGUF reader on sound files: metadata, shapes, extents, versions, padding."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from sipd.weights.gguf import read_gguf
from sipd.weights.gguf_array import GgufArray, ValueType
from sipd.weights.tensor_table import QuantType
from tests.builders import GgufWriter, Typed, build_gguf
from tests.paths import shared_path


def one_tensor(**settings: int) -> GgufWriter:
    writer = GgufWriter(**settings)  # type: ignore[arg-type]
    writer.add("general.architecture", "llama")
    writer.add_tensor("a", (2, 3), QuantType.F32.type_id, struct.pack("<6f", *range(6)))
    return writer


@pytest.mark.parametrize(
    ("value_type", "value"),
    [
        (ValueType.UINT8, 200),
        (ValueType.INT8, -100),
        (ValueType.UINT16, 60000),
        (ValueType.INT16, -30000),
        (ValueType.UINT32, 4_000_000_000),
        (ValueType.INT32, -2_000_000_000),
        (ValueType.FLOAT32, 0.5),
        (ValueType.BOOL, True),
        (ValueType.STRING, "Grüße"),
        (ValueType.UINT64, 2**63),
        (ValueType.INT64, -(2**63)),
        (ValueType.FLOAT64, 0.1),
    ],
)
def test_every_scalar_type_is_read(tmp_path: Path, value_type: ValueType, value: object) -> None:
    writer = GgufWriter()
    writer.add("key", Typed(value, value_type))
    found = read_gguf(writer.write(tmp_path / "a.gguf")).metadata["key"]
    assert found == value
    assert type(found) is type(value)


def test_a_short_array_is_a_tuple(tmp_path: Path) -> None:
    writer = GgufWriter()
    writer.add("key", list(range(64)))
    assert read_gguf(writer.write(tmp_path / "a.gguf")).metadata["key"] == tuple(range(64))


def test_an_empty_array_is_an_empty_tuple(tmp_path: Path) -> None:
    writer = GgufWriter()
    writer.add("key", [])
    assert read_gguf(writer.write(tmp_path / "a.gguf")).metadata["key"] == ()


def test_a_long_array_stays_in_the_file(tmp_path: Path) -> None:
    writer = GgufWriter()
    writer.add("key", list(range(65)))
    found = read_gguf(writer.write(tmp_path / "a.gguf")).metadata["key"]
    assert isinstance(found, GgufArray)
    assert list(found) == list(range(65))


def test_nested_arrays_become_nested_tuples(tmp_path: Path) -> None:
    writer = GgufWriter()
    writer.add("key", [[1, 2], [], ["a"]])
    assert read_gguf(writer.write(tmp_path / "a.gguf")).metadata["key"] == ((1, 2), (), ("a",))


def test_dimensions_are_turned_to_row_major(tmp_path: Path) -> None:
    tensor = read_gguf(one_tensor().write(tmp_path / "a.gguf")).tensors["a"]
    assert tensor.shape == (2, 3)
    assert tensor.row_bytes == 12


def test_the_extent_of_a_tensor_holds_its_bytes(tmp_path: Path) -> None:
    path = one_tensor().write(tmp_path / "a.gguf")
    tensor = read_gguf(path).tensors["a"]
    raw = path.read_bytes()[tensor.file_offset : tensor.file_offset + tensor.n_bytes]
    assert struct.unpack("<6f", raw) == (0, 1, 2, 3, 4, 5)


@pytest.mark.parametrize("version", [2, 3])
def test_versions_2_and_3_are_read(tmp_path: Path, version: int) -> None:
    assert "a" in read_gguf(one_tensor(version=version).write(tmp_path / "a.gguf")).tensors


def test_a_file_may_end_with_its_last_tensor(tmp_path: Path) -> None:
    path = one_tensor(pads_end=False).write(tmp_path / "a.gguf")
    tensor = read_gguf(path).tensors["a"]
    assert tensor.file_offset + tensor.n_bytes == path.stat().st_size


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_the_alignment_of_the_metadata_is_kept(tmp_path: Path, alignment: int) -> None:
    path = build_gguf(tmp_path / "a.gguf", alignment=alignment, d_model=40, n_heads=2)
    tensors = read_gguf(path).tensors
    assert all(tensor.file_offset % alignment == 0 for tensor in tensors.values())


def test_a_file_without_tensors_is_read(tmp_path: Path) -> None:
    writer = GgufWriter()
    writer.add("general.architecture", "llama")
    checkpoint = read_gguf(writer.write(tmp_path / "a.gguf"))
    assert checkpoint.tensors == {}
    assert checkpoint.metadata == {"general.architecture": "llama"}


def test_tensors_may_lie_in_another_order_than_their_list(tmp_path: Path) -> None:
    writer = GgufWriter()
    writer.add_tensor("late", (8,), QuantType.F32.type_id, bytes(32), offset=32)
    writer.add_tensor("early", (8,), QuantType.F32.type_id, bytes(32), offset=0)
    tensors = read_gguf(writer.write(tmp_path / "a.gguf")).tensors
    assert list(tensors) == ["late", "early"]
    assert tensors["late"].file_offset == tensors["early"].file_offset + 32


@pytest.mark.parametrize("quant_type", list(QuantType))
def test_every_quant_type_has_the_size_of_its_blocks(tmp_path: Path, quant_type: QuantType) -> None:
    path = build_gguf(tmp_path / "a.gguf", quant=quant_type, d_model=256, d_ff=256, n_layers=1)
    checkpoint = read_gguf(path)
    tensor = checkpoint.tensors["blk.0.ffn_up.weight"]
    assert tensor.quant_type is quant_type
    assert tensor.n_bytes == 256 * 256 // quant_type.block_size * quant_type.block_bytes


def test_a_symbolic_link_to_a_model_is_read(tmp_path: Path) -> None:
    path = one_tensor().write(tmp_path / "blob")
    link = tmp_path / "model.gguf"
    link.symlink_to(path)
    assert "a" in read_gguf(link).tensors


def test_an_empty_token_and_a_nul_token_are_kept(tmp_path: Path) -> None:
    tokens = [f"t{i}" for i in range(100)]
    tokens[5], tokens[6] = "", "\0"
    writer = GgufWriter()
    writer.add("tokenizer.ggml.tokens", tokens)
    metadata = read_gguf(writer.write(tmp_path / "a.gguf")).metadata
    found = metadata["tokenizer.ggml.tokens"]
    assert isinstance(found, GgufArray)
    assert list(found) == tokens
    assert metadata.get("tokenizer.ggml.unknown_token_id") is None


def test_the_stories_model_has_its_shapes() -> None:
    checkpoint = read_gguf(shared_path("models", "stories260K-f32.gguf"))
    assert len(checkpoint.tensors) == 47
    assert checkpoint.tensors["blk.4.ffn_down.weight"].shape == (64, 172)
    assert checkpoint.metadata["llama.embedding_length"] == 64
