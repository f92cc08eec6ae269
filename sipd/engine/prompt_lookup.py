"""Drafts from the request's own tokens: what followed the last few of them when they stood there before."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

LONGEST, SHORTEST = 6, 2  # tokens at the end that must have stood together before


class PromptLookup:
    """The tokens of one request, searched as bytes: an n-gram is found at memory speed and needs no index."""

    def __init__(self) -> None:
        self._ids = array("I")
        self._bytes = bytearray()

    def __len__(self) -> int:
        return len(self._ids)

    def extend(self, ids: Sequence[int]) -> None:
        """The next tokens of the request."""
        new = array("I", ids)
        self._ids.extend(new)
        self._bytes += new.tobytes()

    def draft(self, n: int) -> list[int]:
        """Up to `n` tokens that may come next; empty when the last few never stood together before."""
        size = self._ids.itemsize
        for length in range(min(LONGEST, len(self._ids) - 1), SHORTEST - 1, -1):
            pattern = bytes(self._bytes[-length * size :])
            at = self._find(pattern, size)
            if at >= 0:
                begin = at + length
                found = self._ids[begin : begin + n]  # shorter where it reaches the end: then it goes round
                return [found[index % len(found)] for index in range(n)]
        return []

    def _find(self, pattern: bytes, size: int) -> int:
        """The latest place of `pattern` before the end, in tokens; -1 when there is none."""
        end = len(self._bytes) - size  # the last token itself has no follower
        while True:
            at = self._bytes.rfind(pattern, 0, end)
            if at < 0 or at % size == 0:
                return at // size if at >= 0 else -1
            end = at + len(pattern) - 1
