"""Writes GGUF files for tests, sound ones by default and malformed ones where a field is overridden.

Invariant: nothing is checked here; what a test asks for is what lands in the file.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sipd.weights.gguf_array import ValueType

_FORMS = {
    ValueType.UINT8: "<B",
    ValueType.INT8: "<b",
    ValueType.UINT16: "<H",
    ValueType.INT16: "<h",
    ValueType.UINT32: "<I",
    ValueType.INT32: "<i",
    ValueType.FLOAT32: "<f",
    ValueType.BOOL: "<B",
    ValueType.UINT64: "<Q",
    ValueType.INT64: "<q",
    ValueType.FLOAT64: "<d",
}


@dataclass(frozen=True, slots=True)
class Typed:
    """A metadata value with its type spelled out; for arrays, `value_type` is that of the elements."""

    value: object
    value_type: ValueType


def encode_string(text: str | bytes) -> bytes:
    """Returns a GGUF string: its length in bytes, then the bytes."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def encode_value(value: object) -> bytes:
    """Returns the type id and the bytes of one metadata value; the type is guessed unless `value` is Typed.

    Guesses: bool BOOL, int UINT32 (INT32 when negative, UINT64 when large), float FLOAT32, str or bytes STRING;
    a sequence is an array of the type of its first element (INT32 for ints, STRING when empty).
    """
    value_type: ValueType | None = None
    if isinstance(value, Typed):
        typed = value
        value, value_type = typed.value, typed.value_type
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        element_type = value_type or _guess(value[0] if value else "", ValueType.INT32)
        header = struct.pack("<IIQ", ValueType.ARRAY, element_type, len(value))
        return header + b"".join(_payload(element, element_type) for element in value)
    value_type = value_type or _guess(value, ValueType.UINT32)
    return struct.pack("<I", value_type) + _payload(value, value_type)


def _guess(value: object, int_type: ValueType) -> ValueType:
    if isinstance(value, bool):
        return ValueType.BOOL
    if isinstance(value, int):
        if value < 0:
            return ValueType.INT32
        return int_type if value < 2**31 else ValueType.UINT64
    if isinstance(value, float):
        return ValueType.FLOAT32
    if isinstance(value, str | bytes):
        return ValueType.STRING
    return ValueType.ARRAY


def _payload(value: object, value_type: ValueType) -> bytes:
    """Returns the bytes of a value without its type; of a nested array, without the outer type id."""
    if isinstance(value, str | bytes) and value_type is ValueType.STRING:
        return encode_string(value)
    if value_type is ValueType.ARRAY:
        return encode_value(value)[4:]
    return struct.pack(_FORMS[value_type], value)


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str | bytes
    dims: tuple[int, ...]
    type_id: int
    data: bytes
    offset: int | None
    n_dims: int | None


@dataclass(slots=True)
class GgufWriter:
    """Collects metadata and tensors. The public fields override what a sound file would say."""

    magic: bytes = b"GGUF"
    version: int = 3
    byte_order: str = "<"  # ">" writes the version and the counts big-endian
    n_tensors: int | None = None
    n_entries: int | None = None
    alignment: int = 32  # padding that is written; metadata says it only when a test adds general.alignment
    pads_end: bool = True
    _metadata: list[bytes] = field(default_factory=list)
    _tensors: list[_Entry] = field(default_factory=list)

    def add(self, key: str | bytes, value: object) -> None:
        """Adds a metadata entry; see `encode_value` for the type."""
        self._metadata.append(encode_string(key) + encode_value(value))

    def add_raw(self, key: str | bytes, value: bytes) -> None:
        """Adds a metadata entry whose value, type id included, is given as bytes."""
        self._metadata.append(encode_string(key) + value)

    def add_tensor(
        self,
        name: str | bytes,
        shape: Sequence[int],
        type_id: int,
        data: bytes,
        *,
        offset: int | None = None,
        n_dims: int | None = None,
    ) -> None:
        """Adds a tensor of a row-major `shape`; `offset` and `n_dims` are what the file claims instead of the truth."""
        self._tensors.append(_Entry(name, tuple(shape)[::-1], type_id, data, offset, n_dims))

    def to_bytes(self) -> bytes:
        """Returns the whole file."""
        n_tensors = len(self._tensors) if self.n_tensors is None else self.n_tensors
        n_entries = len(self._metadata) if self.n_entries is None else self.n_entries
        parts = [self.magic, struct.pack(f"{self.byte_order}IQQ", self.version, n_tensors, n_entries), *self._metadata]
        data: list[bytes] = []
        at = 0
        for entry in self._tensors:
            offset = at if entry.offset is None else entry.offset
            n_dims = len(entry.dims) if entry.n_dims is None else entry.n_dims
            dims = struct.pack(f"<I{len(entry.dims)}Q", n_dims, *entry.dims)
            parts.append(encode_string(entry.name) + dims + struct.pack("<IQ", entry.type_id, offset))
            is_last = entry is self._tensors[-1]
            padding = 0 if is_last and not self.pads_end else -len(entry.data) % self.alignment
            data += [entry.data, bytes(padding)]
            at += len(entry.data) + padding
        header = b"".join(parts)
        padding = -len(header) % self.alignment if self._tensors else 0
        return b"".join([header, bytes(padding), *data])

    def write(self, path: Path) -> Path:
        """Writes the file and returns its path."""
        path.write_bytes(self.to_bytes())
        return path
