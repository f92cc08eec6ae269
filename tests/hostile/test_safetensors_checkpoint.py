"""Damaged or hostile checkpoint directories: config, index, shards that are missing, doubled or elsewhere."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sipd.errors import ModelError, SafetensorsError
from sipd.weights.checkpoint import open_checkpoint
from tests.builders import build_safetensors

INDEX = "model.safetensors.index.json"
FIRST = "model-00001-of-00002.safetensors"
SECOND = "model-00002-of-00002.safetensors"


def refuse(directory: Path, match: str) -> None:
    with pytest.raises(SafetensorsError, match=match) as fault:
        open_checkpoint(directory)
    assert str(directory) in str(fault.value)


def edit_index(directory: Path) -> dict[str, Any]:
    """Returns the weight map of a two-shard checkpoint, to be changed and given to `save_index`."""
    build_safetensors(directory, n_shards=2)
    weight_map: dict[str, Any] = json.loads((directory / INDEX).read_text())["weight_map"]
    return weight_map


def save_index(directory: Path, weight_map: object) -> None:
    (directory / INDEX).write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize("text", ["", "{", "[]", "1", '{"a":1,"a":2}', "\x00"])
def test_a_config_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    build_safetensors(tmp_path)
    (tmp_path / "config.json").write_text(text)
    refuse(tmp_path, r"config\.json: config\.json (is|holds)")


def test_a_config_larger_than_a_megabyte_is_refused(tmp_path: Path) -> None:
    build_safetensors(tmp_path, config={"x": "x" * (1 << 20)})
    refuse(tmp_path, r"config\.json: found \d+ bytes, wanted at most 1048576")


def test_a_config_that_is_a_fifo_is_refused_without_waiting(tmp_path: Path) -> None:
    build_safetensors(tmp_path)
    (tmp_path / "config.json").unlink()
    os.mkfifo(tmp_path / "config.json")
    refuse(tmp_path, "found a FIFO")


def test_a_checkpoint_without_weights_is_refused(tmp_path: Path) -> None:
    build_safetensors(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    refuse(tmp_path, r"found neither model\.safetensors nor model\.safetensors\.index\.json")


def test_weights_that_are_a_dangling_link_are_named(tmp_path: Path) -> None:
    build_safetensors(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").symlink_to("gone")
    refuse(tmp_path, r"model\.safetensors: cannot be opened: No such file")


def test_weights_without_a_config_are_refused(tmp_path: Path) -> None:
    build_safetensors(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ModelError, match=r"found a directory without config\.json"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("weight_map", [None, {}, [], "x"])
def test_an_index_without_a_weight_map_is_refused(tmp_path: Path, weight_map: object) -> None:
    build_safetensors(tmp_path, n_shards=2)
    save_index(tmp_path, weight_map)
    refuse(tmp_path, "weight_map is missing or empty")


@pytest.mark.parametrize(
    "shard",
    ["../x.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "..", "x.bin", "", "a\0.safetensors", 1, None],
)
def test_a_shard_that_is_no_file_of_the_directory_is_refused(tmp_path: Path, shard: object) -> None:
    weight_map = edit_index(tmp_path)
    weight_map["lm_head.weight"] = shard
    save_index(tmp_path, weight_map)
    refuse(tmp_path, r"tensor 'lm_head\.weight' is placed in .*, wanted a \.safetensors file of this directory")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    build_safetensors(tmp_path, n_shards=2)
    (tmp_path / SECOND).unlink()
    refuse(tmp_path, f"{SECOND}: cannot be opened: No such file")


def test_a_tensor_that_the_index_places_in_vain_is_named(tmp_path: Path) -> None:
    weight_map = edit_index(tmp_path)
    weight_map["model.layers.9.mlp.up_proj.weight"] = SECOND
    save_index(tmp_path, weight_map)
    refuse(tmp_path, rf"{SECOND}: tensor 'model\.layers\.9\.mlp\.up_proj\.weight' is missing")


def test_a_tensor_that_the_index_does_not_know_is_named(tmp_path: Path) -> None:
    weight_map = edit_index(tmp_path)
    del weight_map["model.norm.weight"]
    save_index(tmp_path, weight_map)
    refuse(tmp_path, r"tensor 'model\.norm\.weight' is not placed here")


def test_a_tensor_in_two_shards_is_named(tmp_path: Path) -> None:
    edit_index(tmp_path)
    (tmp_path / SECOND).write_bytes((tmp_path / FIRST).read_bytes())
    refuse(tmp_path, f"{SECOND}: tensor '.*' is also in {FIRST}")


def test_a_thousand_shards_and_more_are_refused(tmp_path: Path) -> None:
    edit_index(tmp_path)
    save_index(tmp_path, {f"t{i}": f"{i}.safetensors" for i in range(1025)})
    refuse(tmp_path, "found 1025 shards, wanted at most 1024")


def test_a_shard_that_is_a_directory_is_refused(tmp_path: Path) -> None:
    edit_index(tmp_path)
    (tmp_path / SECOND).unlink()
    (tmp_path / SECOND).mkdir()
    refuse(tmp_path, f"{SECOND}: found a directory, wanted a plain file")


def test_a_shard_that_was_cut_is_refused(tmp_path: Path) -> None:
    edit_index(tmp_path)
    (tmp_path / SECOND).write_bytes((tmp_path / SECOND).read_bytes()[:-1])
    refuse(tmp_path, f"{SECOND}: tensor '.*' ends at byte .*, the file at byte")
