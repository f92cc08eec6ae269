"""Reads and checks the header of one safetensors file.

Invariant: the tensors of a file that passes tile its data section exactly: no overlap, no hole, no trailing byte.
Source: the safetensors format description (8-byte length, JSON header, data).
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from sipd.errors import SafetensorsError, UnsupportedModel
from sipd.weights.model_file import LFS_PREFIX_BYTES, is_lfs_pointer, open_model_file, read_exactly
from sipd.weights.tensor_table import QuantType, Tensor

# Upstream allows 100 MB, whose JSON would cost a gigabyte of objects; the headers of published shards are below 1 MB.
MAX_HEADER_BYTES = 16 << 20

_LENGTH = struct.Struct("<Q")
_MAX_DIMS = 4
_MAX_ELEMENTS = 1 << 48
_QUANT_TYPES = {"F32": QuantType.F32, "F16": QuantType.F16, "BF16": QuantType.BF16}
_OTHER_TYPES = {
    "BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F64", "C64",
    "F4", "F6_E2M3", "F6_E3M2", "F8_E4M3", "F8_E5M2", "F8_E8M0",
}  # fmt: skip
_ENTRY_KEYS = {"dtype", "shape", "data_offsets"}


def read_header(path: Path, file_index: int) -> tuple[dict[str, Tensor], int]:
    """Returns the tensors of one file by name, in file order, and the file's size; blocks for a small read.

    Raises SafetensorsError naming file and tensor, what was found and what was wanted; UnsupportedModel for an element
    type that is sound but not run.
    """
    file, identity = open_model_file(path, SafetensorsError)
    with file:
        if identity.size < _LENGTH.size:
            raise SafetensorsError(f"{path}: found {identity.size} bytes, wanted at least {_LENGTH.size}")
        head = read_exactly(file, path, 0, min(identity.size, LFS_PREFIX_BYTES), SafetensorsError)
        if is_lfs_pointer(head):
            raise SafetensorsError(f"{path}: found a Git LFS pointer, wanted the weights themselves (git lfs pull)")
        (n_bytes,) = _LENGTH.unpack_from(head)
        left = identity.size - _LENGTH.size
        if n_bytes > left:
            raise SafetensorsError(f"{path}: the header is said to have {n_bytes} bytes, {left} are left")
        if n_bytes > MAX_HEADER_BYTES:
            raise SafetensorsError(f"{path}: the header has {n_bytes} bytes, wanted at most {MAX_HEADER_BYTES}")
        text = read_exactly(file, path, _LENGTH.size, n_bytes, SafetensorsError)
    if not text.startswith(b"{"):
        raise SafetensorsError(f"{path}: the header begins with {text[:8]!r}, wanted a JSON object")
    header = parse_object(text, path, "the header")
    _check_remarks(header.pop("__metadata__", {}), path)
    data_start = _LENGTH.size + n_bytes
    tensors = [_tensor(path, name, entry, file_index, data_start) for name, entry in header.items()]
    return _place(path, tensors, data_start, identity.size), identity.size


def parse_object(text: bytes, path: Path, what: str) -> dict[str, Any]:
    """Returns the JSON object in `text`; raises SafetensorsError for anything else, duplicate keys included."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise SafetensorsError(f"{path}: {what} holds the key {name!r} twice")
            found[name] = value
        return found

    try:
        found = json.loads(text.decode(), object_pairs_hook=unique)
    except RecursionError as fault:
        raise SafetensorsError(f"{path}: {what} is nested too deeply") from fault
    except ValueError as fault:  # not UTF-8, not JSON, or a number of thousands of digits
        raise SafetensorsError(f"{path}: {what} is not JSON: {fault}") from fault
    if not isinstance(found, dict):
        raise SafetensorsError(f"{path}: {what} is a JSON {type(found).__name__}, wanted an object")
    return found


def _check_remarks(remarks: object, path: Path) -> None:
    """Raises SafetensorsError unless `__metadata__` maps strings to strings."""
    if not isinstance(remarks, dict) or not all(isinstance(remark, str) for remark in remarks.values()):
        raise SafetensorsError(f"{path}: __metadata__ holds something else than strings")


def _tensor(path: Path, name: str, entry: object, file_index: int, data_start: int) -> Tensor:
    """Returns the tensor that `entry` describes, checked by itself."""

    def refuse(message: str) -> NoReturn:
        raise SafetensorsError(f"{path}: tensor {name!r} {message}")

    if not name:
        refuse("has an empty name")
    if not isinstance(entry, dict) or set(entry) != _ENTRY_KEYS:
        refuse(f"is described by {_short(entry)}, wanted exactly dtype, shape and data_offsets")
    quant_type = _quant_type(path, name, entry)
    dims, span = entry["shape"], entry["data_offsets"]
    if not _is_counts(dims) or not 1 <= len(dims) <= _MAX_DIMS:
        refuse(f"has shape {_short(dims)}, wanted 1 to {_MAX_DIMS} whole numbers")
    n_elements = math.prod(dims)
    if not 0 < n_elements < _MAX_ELEMENTS:
        refuse(f"has shape {dims}, wanted dimensions of at least 1 and fewer than 2^48 elements")
    if not _is_counts(span) or len(span) != 2 or span[0] > span[1]:
        refuse(f"has data_offsets {_short(span)}, wanted a begin and an end that is not before it")
    n_bytes = n_elements * quant_type.block_bytes
    if span[1] - span[0] != n_bytes:
        refuse(f"of shape {dims} and type {quant_type.name} needs {n_bytes} bytes, its data_offsets {span} span others")
    return Tensor(name, tuple(dims), quant_type, file_index, data_start + span[0], n_bytes)


def _quant_type(path: Path, name: str, entry: Mapping[str, Any]) -> QuantType:
    """Returns the element type; raises UnsupportedModel for a known type that is not run."""
    dtype = entry["dtype"]
    wanted = ", ".join(_QUANT_TYPES)
    if not isinstance(dtype, str) or dtype not in _QUANT_TYPES.keys() | _OTHER_TYPES:
        raise SafetensorsError(f"{path}: tensor {name!r} has the unknown dtype {_short(dtype)}, wanted {wanted}")
    if dtype in _OTHER_TYPES:
        raise UnsupportedModel(f"{path}: tensor {name!r} is stored as {dtype}, not supported; wanted {wanted}")
    return _QUANT_TYPES[dtype]


def _place(path: Path, tensors: list[Tensor], data_start: int, file_size: int) -> dict[str, Tensor]:
    """Returns the tensors in file order; raises SafetensorsError unless they tile the data section."""
    ordered = sorted(tensors, key=lambda tensor: tensor.file_offset)
    end = data_start
    for tensor in ordered:
        if tensor.file_offset + tensor.n_bytes > file_size:
            raise SafetensorsError(
                f"{path}: tensor {tensor.name!r} ends at byte {tensor.file_offset + tensor.n_bytes}, "
                f"the file at byte {file_size}"
            )
        if tensor.file_offset != end:
            what = "overlaps what lies before it" if tensor.file_offset < end else "leaves a hole before it"
            raise SafetensorsError(
                f"{path}: tensor {tensor.name!r} {what}: it begins at byte {tensor.file_offset}, wanted {end}"
            )
        end = tensor.file_offset + tensor.n_bytes
    if file_size != end:
        raise SafetensorsError(f"{path}: found {file_size - end} trailing bytes after the last tensor, wanted none")
    return {tensor.name: tensor for tensor in ordered}


def _is_counts(found: object) -> bool:
    """Whether `found` is a list of whole numbers from 0 to 2^63."""
    return isinstance(found, list) and all(type(number) is int and 0 <= number < 1 << 63 for number in found)


def _short(found: object) -> str:
    """Returns a value for a message, cut where it would fill the journal."""
    text = repr(found)
    return text if len(text) <= 80 else text[:77] + "..."
