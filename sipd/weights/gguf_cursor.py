"""Walks the header of a GGUF file through one small window of memory.

Invariant: no length found in the file is believed before it was compared with the bytes that are left.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from sipd.errors import GgufError
from sipd.weights.model_file import read_exactly

_WINDOW_BYTES = 256 * 1024  # large enough that refills vanish beside decoding, small beside any budget
_U64 = struct.Struct("<Q")


class GgufCursor:
    """A position in an open file. Not thread-safe; owned by the function that opened the file."""

    __slots__ = ("_at", "_file", "_window", "_window_start", "file_size", "path")

    def __init__(self, file: FileIO, path: Path, file_size: int, offset: int = 0) -> None:
        self.path = path
        self.file_size = file_size
        self._file = file
        self._window = b""
        self._window_start = offset
        self._at = 0

    @property
    def offset(self) -> int:
        """The byte offset of the next byte to be taken."""
        return self._window_start + self._at

    @property
    def remaining(self) -> int:
        """Bytes between the cursor and the end of the file."""
        return self.file_size - self.offset

    def fault(self, message: str, offset: int | None = None) -> GgufError:
        """Returns the error for the caller to raise, with the file and the byte offset in front."""
        return GgufError(f"{self.path}: at byte {self.offset if offset is None else offset}: {message}")

    def take(self, n_bytes: int, what: str) -> bytes:
        """Returns the next `n_bytes`; raises GgufError when fewer are left. The caller bounds `n_bytes`."""
        if self._at + n_bytes > len(self._window):
            self._refill(n_bytes, what)
        start = self._at
        self._at = start + n_bytes
        return self._window[start : self._at]

    def unpack(self, form: struct.Struct, what: str) -> int | float:
        """Returns the single number that `form` describes."""
        if self._at + form.size > len(self._window):
            self._refill(form.size, what)
        (number,) = form.unpack_from(self._window, self._at)
        self._at += form.size
        return number  # type: ignore[no-any-return]  # struct's stubs know no element types

    def count(self, what: str) -> int:
        """Returns the next unsigned 64-bit number."""
        return int(self.unpack(_U64, what))

    def string(self, what: str, max_bytes: int) -> str:
        """Returns a length-prefixed UTF-8 string of at most `max_bytes`."""
        start = self.offset
        n_bytes = self.count(f"the length of {what}")
        if n_bytes > self.remaining:
            raise self.fault(f"{what} is said to have {n_bytes} bytes, {self.remaining} are left", start)
        if n_bytes > max_bytes:
            raise self.fault(f"{what} has {n_bytes} bytes, wanted at most {max_bytes}", start)
        try:
            return self.take(n_bytes, what).decode()
        except UnicodeDecodeError as fault:
            raise self.fault(f"{what} is not UTF-8: {fault.reason}", start) from fault

    def skip(self, n_bytes: int, what: str) -> None:
        """Moves on by `n_bytes`; raises GgufError when fewer are left."""
        if n_bytes > self.remaining:
            raise self.fault(f"{what} takes {n_bytes} bytes, {self.remaining} are left")
        self._at += n_bytes

    def skip_strings(self, n_strings: int, what: str) -> None:
        """Moves past `n_strings` length-prefixed strings; raises GgufError when one runs past the file's end."""
        unpack_from = _U64.unpack_from
        window, at = self._window, self._at
        last = len(window) - _U64.size
        string_start = at
        for _ in range(n_strings):
            if at > last:
                self._pass_string(string_start, at, what)
                self._refill(_U64.size, f"the length of {what}")
                window, at = self._window, self._at
                last = len(window) - _U64.size
            string_start = at
            at += _U64.size + unpack_from(window, at)[0]
        self._pass_string(string_start, at, what)

    def strings(self, n_strings: int, what: str) -> Iterator[str]:
        """Yields `n_strings` strings; raises GgufError where one is not UTF-8 or runs past the file's end."""
        unpack_from = _U64.unpack_from
        window, at = self._window, self._at
        n_window = len(window)
        for _ in range(n_strings):
            start = at + _U64.size
            end = start + unpack_from(window, at)[0] if start <= n_window else start
            if end > n_window or start > n_window:
                self._at = at
                yield self.string(what, self.file_size)
                window, at, n_window = self._window, self._at, len(self._window)
                continue
            try:
                text = window[start:end].decode()
            except UnicodeDecodeError as fault:
                raise self.fault(f"{what} is not UTF-8: {fault.reason}", self._window_start + at) from fault
            self._at = at = end
            yield text

    def _pass_string(self, start: int, end: int, what: str) -> None:
        """Puts the cursor behind the string at [start, end) of the window; refuses an end outside the file."""
        if self._window_start + end > self.file_size:
            self._at = start
            left = self.file_size - self.offset - _U64.size
            raise self.fault(f"{what} is said to have {end - start - _U64.size} bytes, {left} are left")
        self._at = end

    def _refill(self, n_bytes: int, what: str) -> None:
        """Makes the window begin at the cursor and hold at least `n_bytes`."""
        offset, remaining = self.offset, self.remaining
        if n_bytes > remaining:
            raise self.fault(f"the file ends inside {what}: wanted {n_bytes} bytes, found {max(remaining, 0)}")
        n_window = min(max(n_bytes, _WINDOW_BYTES), remaining)
        self._window = read_exactly(self._file, self.path, offset, n_window, GgufError)
        self._window_start = offset
        self._at = 0
