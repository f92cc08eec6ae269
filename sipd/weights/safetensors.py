"""Reads a Hugging Face checkpoint directory: config.json and one or several safetensors files.

Invariant: index and files say the same; every tensor lies in exactly one file of the directory itself.

`model.safetensors` is taken when it is there, else `model.safetensors.index.json` with its shards: the order in which
transformers looks. Trailing bytes after the last tensor are refused, with their count.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sipd.errors import SafetensorsError
from sipd.weights.model_file import open_model_file, read_exactly
from sipd.weights.safetensors_header import parse_object, read_header
from sipd.weights.tensor_table import Checkpoint, Tensor

CONFIG_NAME = "config.json"
SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"

_SUFFIX = ".safetensors"
_MAX_CONFIG_BYTES = 1 << 20  # published ones have a few kilobytes
_MAX_INDEX_BYTES = 16 << 20  # a line per tensor, as in the header of a shard
_MAX_SHARDS = 1024


def read_safetensors(directory: Path) -> Checkpoint:
    """Returns the tensor table of a checkpoint directory; its metadata are the keys of config.json.

    Blocks for small reads. Raises SafetensorsError naming the file and the tensor; UnsupportedModel for an element
    type that is sound but not run.
    """
    config = _read_object(directory / CONFIG_NAME, _MAX_CONFIG_BYTES)
    shards: dict[str, set[str]] | None = None
    files: tuple[Path, ...] = (directory / SINGLE_NAME,)
    if not os.path.lexists(files[0]):
        if not os.path.lexists(directory / INDEX_NAME):
            raise SafetensorsError(f"{directory}: found neither {SINGLE_NAME} nor {INDEX_NAME}")
        shards = _read_index(directory / INDEX_NAME)
        files = tuple(directory / name for name in shards)
    tensors: dict[str, Tensor] = {}
    sizes: list[int] = []
    for file_index, file in enumerate(files):
        found, size = read_header(file, file_index)
        for name in found:
            if name in tensors:
                raise SafetensorsError(f"{file}: tensor {name!r} is also in {files[tensors[name].file_index].name}")
        if shards is not None:
            _compare(file, found.keys() - shards[file.name], shards[file.name] - found.keys())
        tensors |= found
        sizes.append(size)
    return Checkpoint(directory, "safetensors", files, tuple(sizes), config, tensors)


def _compare(file: Path, left_over: set[str], missing: set[str]) -> None:
    """Raises SafetensorsError when a shard and the index disagree."""
    if missing:
        raise SafetensorsError(f"{file}: tensor {min(missing)!r} is missing, {INDEX_NAME} places it here")
    if left_over:
        raise SafetensorsError(f"{file}: tensor {min(left_over)!r} is not placed here by {INDEX_NAME}")


def _read_index(path: Path) -> dict[str, set[str]]:
    """Returns the shards' file names, sorted, each with the tensors that the index places in it."""
    weight_map = _read_object(path, _MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise SafetensorsError(f"{path}: weight_map is missing or empty, wanted tensor names with their files")
    shards: dict[str, set[str]] = {}
    for name, shard in weight_map.items():
        # A plain name keeps every read inside the directory.
        if not isinstance(shard, str) or not shard.endswith(_SUFFIX) or "/" in shard or "\0" in shard:
            raise SafetensorsError(
                f"{path}: tensor {name!r} is placed in {str(shard)[:80]!r}, wanted a {_SUFFIX} file of this directory"
            )
        shards.setdefault(shard, set()).add(name)
    if len(shards) > _MAX_SHARDS:
        raise SafetensorsError(f"{path}: found {len(shards)} shards, wanted at most {_MAX_SHARDS}")
    return dict(sorted(shards.items()))


def _read_object(path: Path, max_bytes: int) -> dict[str, Any]:
    """Returns the JSON object in a small file; raises SafetensorsError when it is absent, too large or no object."""
    file, identity = open_model_file(path, SafetensorsError)
    with file:
        if identity.size > max_bytes:
            raise SafetensorsError(f"{path}: found {identity.size} bytes, wanted at most {max_bytes}")
        text = read_exactly(file, path, 0, identity.size, SafetensorsError) if identity.size else b""
    return parse_object(text, path, path.name)
