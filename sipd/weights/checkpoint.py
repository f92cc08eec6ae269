"""Opens a model by its path: a GGUF file, the first part of a split one, or a checkpoint directory.

Invariant: nothing is written, beside the model or elsewhere.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from sipd.errors import GgufError, ModelError
from sipd.weights.gguf import read_gguf
from sipd.weights.safetensors import read_safetensors
from sipd.weights.tensor_table import Checkpoint

_PART_NAME = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf")
_MAX_PARTS = 1024


def open_checkpoint(path: Path) -> Checkpoint:
    """Returns the tensor table and metadata of the model at `path`; blocks for a scan of the headers.

    Raises ModelError (GgufError, SafetensorsError, UnsupportedModel) naming the file, what was found and wanted.
    """
    try:
        is_directory = path.is_dir()
    except OSError:  # a directory above may not be searched; opening the file says so
        is_directory = False
    if is_directory:
        return _open_directory(path)
    if path.suffix == ".safetensors":
        raise ModelError(f"{path}: found a single safetensors file, wanted its directory with config.json")
    first = read_gguf(path)
    n_parts = first.metadata.get("split.count", 0)
    if type(n_parts) is not int or not 0 <= n_parts <= _MAX_PARTS:
        raise GgufError(f"{path}: split.count is {n_parts!r}, wanted a number up to {_MAX_PARTS}")
    return _join_parts(first, n_parts) if n_parts > 1 else first


def _open_directory(directory: Path) -> Checkpoint:
    """Returns the checkpoint in a directory; says what to give instead where it holds a GGUF file."""
    try:
        names = sorted(entry.name for entry in directory.iterdir())
    except OSError as fault:
        raise ModelError(f"{directory}: cannot be read: {fault.strerror}") from fault
    if "config.json" not in names:
        gguf = next((name for name in names if name.endswith(".gguf")), None)
        hint = f"; it holds {gguf}, give the path of that file" if gguf else ""
        raise ModelError(f"{directory}: found a directory without config.json, wanted a checkpoint{hint}")
    return read_safetensors(directory)


def _join_parts(first: Checkpoint, n_parts: int) -> Checkpoint:
    """Returns all parts of a split GGUF as one checkpoint with the metadata of the first."""
    name = _PART_NAME.fullmatch(first.path.name)
    if name is None or int(name["part"]) != 1 or int(name["parts"]) != n_parts or first.metadata.get("split.no") != 0:
        raise GgufError(
            f"{first.path}: this is a part of a model split into {n_parts}, wanted the first part, "
            f"named ...-00001-of-{n_parts:05}.gguf"
        )
    files, sizes, tensors = [first.path], list(first.file_sizes), dict(first.tensors)
    for number in range(1, n_parts):
        path = first.path.with_name(f"{name['stem']}-{number + 1:05}-of-{n_parts:05}.gguf")
        part = read_gguf(path, file_index=number)
        found = (part.metadata.get("split.no"), part.metadata.get("split.count"))
        if found != (number, n_parts):
            raise GgufError(f"{path}: split.no and split.count are {found}, wanted {(number, n_parts)}")
        twice = tensors.keys() & part.tensors.keys()
        if twice:
            raise GgufError(f"{path}: tensor {min(twice)!r} is also in an earlier part")
        tensors |= part.tensors
        files.append(path)
        sizes += part.file_sizes
    n_tensors = first.metadata.get("split.tensors.count", len(tensors))
    if n_tensors != len(tensors):
        raise GgufError(f"{first.path}: split.tensors.count is {n_tensors!r}, the parts hold {len(tensors)}")
    return replace(first, files=tuple(files), file_sizes=tuple(sizes), tensors=tensors)
