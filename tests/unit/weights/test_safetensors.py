"""Hugging Face checkpoints on sound files: one file, shards, types, and the same weights as the GGUF file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sipd.weights.gguf import read_gguf
from sipd.weights.safetensors import read_safetensors
from sipd.weights.tensor_table import Checkpoint, QuantType
from tests.builders import build_gguf, build_safetensors, safetensors_bytes
from tests.paths import shared_path


def tensor_bytes(checkpoint: Checkpoint, name: str) -> bytes:
    tensor = checkpoint.tensors[name]
    content = checkpoint.files[tensor.file_index].read_bytes()
    return content[tensor.file_offset : tensor.file_offset + tensor.n_bytes]


def test_the_metadata_are_the_keys_of_the_config(tmp_path: Path) -> None:
    build_safetensors(tmp_path, config={"rope_scaling": {"type": "llama3"}, "bos_token_id": None})
    metadata = read_safetensors(tmp_path).metadata
    assert metadata["model_type"] == "llama"
    assert metadata["rope_scaling"] == {"type": "llama3"}
    assert "bos_token_id" not in metadata


@pytest.mark.parametrize("dtype", [QuantType.F32, QuantType.F16, QuantType.BF16])
def test_every_float_type_is_read(tmp_path: Path, dtype: QuantType) -> None:
    build_safetensors(tmp_path, dtype=dtype)
    tensor = read_safetensors(tmp_path).tensors["model.layers.1.mlp.down_proj.weight"]
    assert tensor.shape == (64, 96)
    assert tensor.quant_type is dtype
    assert tensor.n_bytes == 64 * 96 * dtype.block_bytes


def test_a_single_file_is_file_0(tmp_path: Path) -> None:
    checkpoint = read_safetensors(build_safetensors(tmp_path))
    assert checkpoint.files == (tmp_path / "model.safetensors",)
    assert checkpoint.file_sizes == ((tmp_path / "model.safetensors").stat().st_size,)
    assert {tensor.file_index for tensor in checkpoint.tensors.values()} == {0}


def test_shards_hold_the_same_tensors_as_one_file(tmp_path: Path) -> None:
    single = read_safetensors(build_safetensors(tmp_path / "one"))
    sharded = read_safetensors(build_safetensors(tmp_path / "three", n_shards=3))
    assert len(sharded.files) == 3
    assert sharded.tensors.keys() == single.tensors.keys()
    assert all(tensor_bytes(sharded, name) == tensor_bytes(single, name) for name in single.tensors)


def test_the_single_file_is_taken_where_an_index_is_there_as_well(tmp_path: Path) -> None:
    build_safetensors(tmp_path, n_shards=2)
    build_safetensors(tmp_path)
    assert [file.name for file in read_safetensors(tmp_path).files] == ["model.safetensors"]


def test_both_formats_hold_the_same_weights(tmp_path: Path) -> None:
    gguf = read_gguf(build_gguf(tmp_path / "a.gguf", seed=5))
    hf = read_safetensors(build_safetensors(tmp_path / "hf", seed=5))
    for name, hf_name in (
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("blk.1.ffn_gate.weight", "model.layers.1.mlp.gate_proj.weight"),
        ("output.weight", "lm_head.weight"),
    ):
        assert gguf.tensors[name].shape == hf.tensors[hf_name].shape
        assert tensor_bytes(gguf, name) == tensor_bytes(hf, hf_name)


def test_remarks_in_the_header_are_no_tensor(tmp_path: Path) -> None:
    assert "__metadata__" not in read_safetensors(build_safetensors(tmp_path)).tensors


def test_a_header_without_remarks_is_read(tmp_path: Path) -> None:
    build_safetensors(tmp_path)
    header = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(header, bytes(8)))
    assert list(read_safetensors(tmp_path).tensors) == ["a"]


def test_tensors_may_be_listed_in_another_order_than_they_lie(tmp_path: Path) -> None:
    build_safetensors(tmp_path)
    header = {
        "late": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]},
        "early": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
    }
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(header, bytes(16)))
    assert list(read_safetensors(tmp_path).tensors) == ["early", "late"]


def test_files_may_be_links_as_in_a_download_cache(tmp_path: Path) -> None:
    build_safetensors(tmp_path / "blobs", n_shards=2)
    (tmp_path / "snapshot").mkdir()
    for file in (tmp_path / "blobs").iterdir():
        (tmp_path / "snapshot" / file.name).symlink_to(Path("..") / "blobs" / file.name)
    assert len(read_safetensors(tmp_path / "snapshot").tensors) == 21


def test_the_safetensors_package_finds_the_same_tensors(tmp_path: Path) -> None:
    oracle = pytest.importorskip("safetensors")
    checkpoint = read_safetensors(build_safetensors(tmp_path, dtype=QuantType.BF16))
    (size,) = checkpoint.file_sizes
    listed = dict(oracle.deserialize(checkpoint.files[0].read_bytes()))
    assert listed.keys() == checkpoint.tensors.keys()
    for name, entry in listed.items():
        assert tuple(entry["shape"]) == checkpoint.tensors[name].shape
        assert bytes(entry["data"]) == tensor_bytes(checkpoint, name)
    assert size == checkpoint.files[0].stat().st_size


def test_the_stories_checkpoint_has_its_shapes() -> None:
    directory = shared_path("models", "stories260K-hf")
    checkpoint = read_safetensors(directory)
    assert len(checkpoint.tensors) == 47
    assert checkpoint.tensors["model.layers.4.mlp.down_proj.weight"].shape == (64, 172)
    assert checkpoint.metadata == json.loads((directory / "config.json").read_text())
