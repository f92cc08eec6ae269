"""Long GGUF metadata arrays, left in the file and read again whenever they are looked at.

Invariant: an array holds no element; a vocabulary of any length costs a few kilobytes of memory.
"""

from __future__ import annotations

import enum
import struct
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import overload

from sipd.errors import GgufError
from sipd.weights.gguf_cursor import GgufCursor
from sipd.weights.model_file import FileIdentity, open_model_file

STRINGS_PER_MARK = 512  # a random access decodes at most this many strings
_NUMBERS_PER_CHUNK = 8192
Scalar = bool | int | float | str


class ValueType(enum.IntEnum):
    """Metadata value types of the GGUF specification (`gguf_metadata_value_type`)."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


NUMBER_FORMS = {
    ValueType.UINT8: struct.Struct("<B"),
    ValueType.INT8: struct.Struct("<b"),
    ValueType.UINT16: struct.Struct("<H"),
    ValueType.INT16: struct.Struct("<h"),
    ValueType.UINT32: struct.Struct("<I"),
    ValueType.INT32: struct.Struct("<i"),
    ValueType.FLOAT32: struct.Struct("<f"),
    ValueType.BOOL: struct.Struct("<B"),
    ValueType.UINT64: struct.Struct("<Q"),
    ValueType.INT64: struct.Struct("<q"),
    ValueType.FLOAT64: struct.Struct("<d"),
}


@dataclass(frozen=True, slots=True)
class ArrayExtent:
    """Where an array lies: its file as it was when the header was read, and the offset of its first element."""

    path: Path
    identity: FileIdentity
    key: str
    offset: int


class GgufArray(Sequence[Scalar]):
    """A one-dimensional metadata array in its file. Immutable; each iteration opens the file for itself.

    Reading raises GgufError when the file is gone or is no longer the one whose header was read, when a string
    is not UTF-8, or when a BOOL is neither 0 nor 1.
    """

    __slots__ = ("_extent", "_length", "_marks", "element_type")

    def __init__(self, extent: ArrayExtent, element_type: ValueType, length: int, marks: array[int]) -> None:
        self.element_type = element_type
        self._extent = extent
        self._length = length
        self._marks = marks  # offsets of every STRINGS_PER_MARK-th string; empty for numbers

    def __repr__(self) -> str:
        """A short form: an array is too long to print."""
        return f"GgufArray({self._extent.key!r}, {self.element_type.name}, {self._length} elements)"

    def __len__(self) -> int:
        """The number of elements."""
        return self._length

    def __iter__(self) -> Iterator[Scalar]:
        """Yields the elements in order from a fresh reading of the file."""
        return self._elements(0, self._length)

    @overload
    def __getitem__(self, index: int) -> Scalar: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Scalar, ...]: ...

    def __getitem__(self, index: int | slice) -> Scalar | tuple[Scalar, ...]:
        """Returns one element, or a tuple for a slice; opens the file once."""
        if isinstance(index, slice):
            chosen = range(self._length)[index]
            if not chosen:
                return ()
            low, high = min(chosen[0], chosen[-1]), max(chosen[0], chosen[-1])
            picked = tuple(islice(self._elements(low, high + 1), 0, None, abs(chosen.step)))
            return picked if chosen.step > 0 else picked[::-1]
        return next(self._elements(range(self._length)[index], self._length))

    def _elements(self, start: int, stop: int) -> Iterator[Scalar]:
        """Yields elements [start, stop)."""
        form = NUMBER_FORMS.get(self.element_type)
        if form is None:
            return self._strings(start, stop)
        return self._numbers(form, start, stop)

    def _strings(self, start: int, stop: int) -> Iterator[str]:
        mark, n_before = divmod(start, STRINGS_PER_MARK)
        with self._cursor(self._marks[mark]) as cursor:
            what = f"an element of {self._extent.key!r}"
            cursor.skip_strings(n_before, what)
            yield from cursor.strings(stop - start, what)

    def _numbers(self, form: struct.Struct, start: int, stop: int) -> Iterator[bool | int | float]:
        with self._cursor(self._extent.offset + start * form.size) as cursor:
            for at in range(start, stop, _NUMBERS_PER_CHUNK):
                n_numbers = min(_NUMBERS_PER_CHUNK, stop - at)
                offset = cursor.offset
                chunk = cursor.take(n_numbers * form.size, repr(self._extent.key))
                if self.element_type is ValueType.BOOL:
                    if max(chunk) > 1:
                        raise cursor.fault(f"{self._extent.key!r} holds {max(chunk)} as a BOOL, wanted 0 or 1", offset)
                    yield from map(bool, chunk)
                else:
                    yield from (number for (number,) in form.iter_unpack(chunk))

    @contextmanager
    def _cursor(self, offset: int) -> Iterator[GgufCursor]:
        """Opens the file anew at `offset`; raises GgufError when it is another file by now."""
        extent = self._extent
        file, identity = open_model_file(extent.path, GgufError)
        with file:
            if identity != extent.identity:
                raise GgufError(f"{extent.path}: the file was changed after its header was read")
            yield GgufCursor(file, extent.path, identity.size, offset)
