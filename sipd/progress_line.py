"""One progress line on a terminal; silent where stderr is none."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

from sipd.size import format_size

_INTERVAL_S = 0.2


class ProgressLine:
    """Shows "label 41 % 40.1 MiB of 93.8 MiB, 12.0 MiB/s" while it is entered; erased at the end. One thread."""

    def __init__(self, label: str, total_bytes: int | None, stream: TextIO | None = None) -> None:
        self._label = label
        self._total = total_bytes
        self._stream = stream or sys.stderr
        self._is_shown = self._stream.isatty()
        self._done = 0
        self._counted = 0
        self._started = time.monotonic()
        self._next = self._started

    def __enter__(self) -> ProgressLine:
        """Returns itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Erases the line."""
        if self._is_shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def start_at(self, n_bytes: int) -> None:
        """Bytes that were there before: part of the share, not of the rate."""
        self._done = n_bytes

    def advance(self, n_bytes: int) -> None:
        """Counts `n_bytes` more."""
        self._done += n_bytes
        self._counted += n_bytes
        now = time.monotonic()
        if self._is_shown and now >= self._next:
            self._next = now + _INTERVAL_S
            self._stream.write(f"\r{self._text(now)}\x1b[K")
            self._stream.flush()

    def _text(self, now: float) -> str:
        rate = f"{format_size(int(self._counted / max(now - self._started, 1e-3)))}/s"
        if not self._total:
            return f"{self._label} {format_size(self._done)}, {rate}"
        share = 100 * self._done // self._total
        return f"{self._label} {share} % {format_size(self._done)} of {format_size(self._total)}, {rate}"
