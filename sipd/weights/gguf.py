"""Reads the header of a GGUF file (versions 2 and 3, little endian) into a tensor table and metadata.

Invariant: only the header is read, every number in it is checked before it is used, and what is allocated is bounded
by constants below, whatever the file says. Source: the GGUF specification, sections "File Structure" and "ggml_type".

Stricter than the specification in three points, so that damage cannot pass for a model: tensors must follow each
other without overlap and without gap (padding to the alignment apart), a file must end with its last tensor or with
that tensor's padding (trailing bytes are refused with their count), and a BOOL must be 0 or 1.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sipd.errors import GgufError, UnsupportedModel
from sipd.weights.gguf_array import NUMBER_FORMS, STRINGS_PER_MARK, ArrayExtent, GgufArray, ValueType
from sipd.weights.gguf_cursor import GgufCursor
from sipd.weights.model_file import LFS_PREFIX_BYTES, FileIdentity, is_lfs_pointer, open_model_file
from sipd.weights.tensor_table import Checkpoint, QuantType, Tensor

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
EAGER_ELEMENTS = 64  # arrays up to this length become tuples at once

_MAX_ALIGNMENT = 1 << 20
_MIN_ALIGNMENT = 8  # the specification wants a multiple of 8
_MAX_COUNT = 1 << 16  # tensors, and metadata entries; the largest published models have a few thousand
_MAX_KEY_BYTES = 65535  # specification: "Key names ... at most 2^16-1 bytes"
_MAX_NAME_BYTES = 64  # specification: tensor names are "at most 64 bytes long"
_MAX_RESIDENT_BYTES = 32 << 20  # strings, scalars and short arrays together; chat templates are tens of kilobytes
_MAX_NESTING = 4
_MAX_DIMS = 4
_MAX_ELEMENTS = 1 << 48
_MIN_ENTRY_BYTES = 8 + 1 + 4 + 1  # key length, one byte of key, value type, one byte of value
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8  # name length, one byte of name, n_dims, one dim, type, offset

_U32 = struct.Struct("<I")
_QUANT_TYPES = {quant_type.type_id: quant_type for quant_type in QuantType}
_OTHER_TYPES = {
    4: "Q4_2", 5: "Q4_3", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64",
    28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _TensorEntry:
    """One line of the tensor list, its offset still relative to the data section."""

    name: str
    shape: tuple[int, ...]
    quant_type: QuantType
    offset: int
    n_bytes: int


@dataclass(slots=True)
class _Header:
    """What is known while a header is being read; owned by `read_gguf`."""

    cursor: GgufCursor
    identity: FileIdentity
    resident_bytes: int = 0
    metadata: dict[str, object] = field(default_factory=dict)

    def hold(self, n_bytes: int) -> None:
        """Accounts for `n_bytes` of metadata that stay in memory; raises GgufError beyond the cap."""
        self.resident_bytes += n_bytes
        if self.resident_bytes > _MAX_RESIDENT_BYTES:
            raise self.cursor.fault(f"metadata beside long arrays exceeds {_MAX_RESIDENT_BYTES} bytes")


def read_gguf(path: Path, file_index: int = 0) -> Checkpoint:
    """Returns the tensor table and the metadata of one GGUF file; blocks for a scan of its header.

    `file_index` is put into the tensors (parts of a split model have their own). Metadata arrays of more than
    EAGER_ELEMENTS elements are `GgufArray`, shorter ones tuples. Raises GgufError naming file, byte offset, what was
    found and what was wanted; UnsupportedModel for a quantisation that is sound but not run.
    """
    file, identity = open_model_file(path, GgufError)
    with file:
        cursor = GgufCursor(file, path, identity.size)
        header = _Header(cursor, identity)
        _check_preamble(cursor)
        n_tensors = _count(cursor, "tensors", _MIN_TENSOR_BYTES)
        n_entries = _count(cursor, "metadata entries", _MIN_ENTRY_BYTES)
        for _ in range(n_entries):
            _read_entry(header)
        alignment = _alignment(header)
        entries: dict[str, _TensorEntry] = {}
        for _ in range(n_tensors):
            _read_tensor(cursor, alignment, entries)
        tensors = _place(cursor, alignment, entries, file_index)
    return Checkpoint(path, "gguf", (path,), (identity.size,), header.metadata, tensors)


def _check_preamble(cursor: GgufCursor) -> None:
    """Reads magic and version; raises GgufError for anything but a little-endian version 2 or 3."""
    head = cursor.take(min(cursor.file_size, len(MAGIC)), "the magic")
    if head != MAGIC:
        if is_lfs_pointer(head + cursor.take(min(cursor.remaining, LFS_PREFIX_BYTES), "the first line")):
            raise cursor.fault("found a Git LFS pointer, wanted the model itself (git lfs pull)", 0)
        if head == MAGIC[::-1]:
            raise cursor.fault("big-endian GGUF is not supported", 0)
        raise cursor.fault(f"found {head!r}, wanted {MAGIC!r}: not a GGUF file", 0)
    version = int(cursor.unpack(_U32, "the version"))
    if version not in VERSIONS:
        # A small number in the high bytes is a version written by a big-endian machine.
        if version & 0xFFFF == 0 and version:
            raise cursor.fault("big-endian GGUF is not supported", len(MAGIC))
        raise cursor.fault(f"found GGUF version {version}, wanted 2 or 3", len(MAGIC))


def _count(cursor: GgufCursor, what: str, min_bytes: int) -> int:
    """Reads a count and compares it with the bytes that so many items need at least."""
    offset = cursor.offset
    count = cursor.count(f"the number of {what}")
    if count * min_bytes > cursor.remaining:
        raise cursor.fault(
            f"found {count} {what}, which need {min_bytes} bytes each; {cursor.remaining} bytes are left", offset
        )
    if count > _MAX_COUNT:
        raise cursor.fault(f"found {count} {what}, wanted at most {_MAX_COUNT}", offset)
    return count


def _read_entry(header: _Header) -> None:
    """Reads one key and its value into the metadata."""
    cursor = header.cursor
    offset = cursor.offset
    key = cursor.string("a metadata key", _MAX_KEY_BYTES)
    if not key:
        raise cursor.fault("found an empty metadata key", offset)
    if key in header.metadata:
        raise cursor.fault(f"metadata key {key!r} appears twice", offset)
    header.hold(len(key))
    header.metadata[key] = _read_value(header, key, _value_type(cursor, key), 0)


def _value_type(cursor: GgufCursor, key: str) -> ValueType:
    """Reads a value type; raises GgufError when the specification has none of that number."""
    offset = cursor.offset
    type_id = int(cursor.unpack(_U32, f"the value type of {key!r}"))
    try:
        return ValueType(type_id)
    except ValueError:
        raise cursor.fault(f"{key!r} has value type {type_id}, wanted 0 to {max(ValueType)}", offset) from None


def _read_value(header: _Header, key: str, value_type: ValueType, depth: int) -> object:
    """Reads one value: a scalar, a tuple, or a GgufArray."""
    cursor = header.cursor
    offset = cursor.offset
    header.hold(8)
    if value_type is ValueType.ARRAY:
        return _read_array(header, key, depth + 1)
    if value_type is ValueType.STRING:
        text = cursor.string(f"the value of {key!r}", _MAX_RESIDENT_BYTES)
        header.hold(len(text))
        return text
    number = cursor.unpack(NUMBER_FORMS[value_type], f"the value of {key!r}")
    if value_type is ValueType.BOOL:
        if number not in (0, 1):
            raise cursor.fault(f"{key!r} holds {number} as a BOOL, wanted 0 or 1", offset)
        return bool(number)
    return number


def _read_array(header: _Header, key: str, depth: int) -> object:
    """Reads a short array into a tuple; checks and passes a long one, returning a GgufArray."""
    cursor = header.cursor
    offset = cursor.offset
    if depth > _MAX_NESTING:
        raise cursor.fault(f"{key!r} nests arrays deeper than {_MAX_NESTING}", offset)
    element_type = _value_type(cursor, key)
    length = cursor.count(f"the length of {key!r}")
    if length <= EAGER_ELEMENTS:
        return tuple(_read_value(header, key, element_type, depth) for _ in range(length))
    if element_type is ValueType.ARRAY:
        raise cursor.fault(f"{key!r} is an array of {length} arrays, wanted at most {EAGER_ELEMENTS}", offset)
    start = cursor.offset
    marks: array[int] = array("Q")
    if element_type is ValueType.STRING:
        if length * 8 > cursor.remaining:
            raise cursor.fault(f"{key!r} is said to have {length} strings, {cursor.remaining} bytes are left", offset)
        for done in range(0, length, STRINGS_PER_MARK):
            marks.append(cursor.offset)
            cursor.skip_strings(min(STRINGS_PER_MARK, length - done), f"an element of {key!r}")
    else:
        cursor.skip(length * NUMBER_FORMS[element_type].size, f"{key!r} with {length} elements")
    header.hold(64 + 8 * len(marks))
    return GgufArray(ArrayExtent(cursor.path, header.identity, key, start), element_type, length, marks)


def _alignment(header: _Header) -> int:
    """Returns the alignment of tensor offsets in bytes: `general.alignment`, or the specification's default."""
    found = header.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    is_number = isinstance(found, int) and not isinstance(found, bool)
    if not is_number or not _is_alignment(found):  # type: ignore[arg-type]  # is_number says int
        raise GgufError(
            f"{header.cursor.path}: general.alignment is {found!r}, "
            f"wanted a power of two from {_MIN_ALIGNMENT} to {_MAX_ALIGNMENT}"
        )
    return found  # type: ignore[return-value]  # as above


def _is_alignment(number: int) -> bool:
    return _MIN_ALIGNMENT <= number <= _MAX_ALIGNMENT and number & (number - 1) == 0


def _read_tensor(cursor: GgufCursor, alignment: int, entries: dict[str, _TensorEntry]) -> None:
    """Reads one line of the tensor list and adds it to `entries`."""
    start = cursor.offset
    name = cursor.string("a tensor name", _MAX_NAME_BYTES)
    if not name:
        raise cursor.fault("found a tensor without a name", start)
    if name in entries:
        raise cursor.fault(f"tensor {name!r} appears twice", start)
    shape = _read_shape(cursor, name)
    quant_type = _read_quant_type(cursor, name)
    if shape[-1] % quant_type.block_size:
        raise cursor.fault(
            f"tensor {name!r} has rows of {shape[-1]} elements, "
            f"{quant_type.name} wants a multiple of {quant_type.block_size}",
            start,
        )
    offset_at = cursor.offset
    offset = cursor.count(f"the offset of tensor {name!r}")
    if offset % alignment:
        raise cursor.fault(f"tensor {name!r} has offset {offset}, wanted a multiple of {alignment}", offset_at)
    n_bytes = math.prod(shape[:-1]) * quant_type.row_bytes(shape[-1])
    if offset + n_bytes > cursor.file_size:
        raise cursor.fault(
            f"tensor {name!r} of {n_bytes} bytes has offset {offset}; the whole file has {cursor.file_size} bytes",
            start,
        )
    entries[name] = _TensorEntry(name, shape, quant_type, offset, n_bytes)


def _read_shape(cursor: GgufCursor, name: str) -> tuple[int, ...]:
    """Reads the dimensions, fastest first in the file, and returns them row-major."""
    offset = cursor.offset
    n_dims = int(cursor.unpack(_U32, f"the number of dimensions of tensor {name!r}"))
    if not 1 <= n_dims <= _MAX_DIMS:
        raise cursor.fault(f"tensor {name!r} has {n_dims} dimensions, wanted 1 to {_MAX_DIMS}", offset)
    shape = tuple(cursor.count(f"dimensions of tensor {name!r}") for _ in range(n_dims))[::-1]
    if min(shape) < 1 or math.prod(shape) >= _MAX_ELEMENTS:
        raise cursor.fault(
            f"tensor {name!r} has shape {shape}, wanted dimensions of at least 1 and fewer than 2^48 elements", offset
        )
    return shape


def _read_quant_type(cursor: GgufCursor, name: str) -> QuantType:
    """Reads an element type; raises UnsupportedModel for a GGML type that is not run, GgufError for no type at all."""
    offset = cursor.offset
    type_id = int(cursor.unpack(_U32, f"the type of tensor {name!r}"))
    quant_type = _QUANT_TYPES.get(type_id)
    if quant_type is not None:
        return quant_type
    wanted = ", ".join(known.name for known in QuantType)
    if type_id in _OTHER_TYPES:
        raise UnsupportedModel(
            f"{cursor.path}: tensor {name!r} is stored as {_OTHER_TYPES[type_id]}, not supported; wanted {wanted}"
        )
    raise cursor.fault(f"tensor {name!r} has the unknown type {type_id}; wanted {wanted}", offset)


def _place(
    cursor: GgufCursor, alignment: int, entries: Mapping[str, _TensorEntry], file_index: int
) -> dict[str, Tensor]:
    """Returns the tensors with absolute offsets, in the order of the list; checks that they tile the data section."""
    data_start = _align(cursor.offset, alignment)
    end = cursor.offset if not entries else data_start
    for entry in sorted(entries.values(), key=lambda entry: entry.offset):
        start = data_start + entry.offset
        wanted = _align(end, alignment)
        if start != wanted:
            what = "overlaps what lies before it" if start < wanted else "leaves a gap before it"
            raise cursor.fault(f"tensor {entry.name!r} {what}: data begin here, wanted at {wanted}", start)
        end = start + entry.n_bytes
        if end > cursor.file_size:
            raise cursor.fault(
                f"tensor {entry.name!r} of {entry.n_bytes} bytes runs past the end of the file, "
                f"which has {cursor.file_size} bytes",
                start,
            )
    if cursor.file_size > _align(end, alignment):
        raise cursor.fault(f"found {cursor.file_size - end} trailing bytes, wanted padding to {alignment} at most", end)
    return {
        entry.name: Tensor(
            entry.name, entry.shape, entry.quant_type, file_index, data_start + entry.offset, entry.n_bytes
        )
        for entry in entries.values()
    }


def _align(offset: int, alignment: int) -> int:
    """Returns `offset` rounded up to a multiple of `alignment`."""
    return -(-offset // alignment) * alignment
