"""Text of unknown origin (file names, names of requests, a model's metadata), made fit to be shown and to be sent.

Invariant: what comes out is Unicode; `printable` keeps it on one line, `sendable` within what a gRPC status may take.
"""

from __future__ import annotations

# Of a header, where gRPC writes a message percent-encoded. The details repeat it, and clients take 8 KiB in all.
MAX_HEADER_BYTES = 2000
_GAP = " [...] "
_HALF = (MAX_HEADER_BYTES - len(_GAP)) // 2


def printable(text: str) -> str:
    """Returns `text` with everything that would end a line, steer a terminal or stay unseen written as an escape."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def sendable(text: str) -> str:
    """Returns `text`, bytes that are no UTF-8 written as escapes, its middle left out where a header is too short."""
    if len(text) > MAX_HEADER_BYTES:
        text = text[:_HALF] + _GAP + text[-_HALF:]
    text = text.encode(errors="backslashreplace").decode()
    if sum(map(_header_bytes, text)) <= MAX_HEADER_BYTES:
        return text
    return _head(text) + _GAP + _head(text[::-1])[::-1]


def _head(text: str) -> str:
    """Returns as much of `text` as half of the header takes beside the gap."""
    n_bytes = 0
    for index, char in enumerate(text):
        n_bytes += _header_bytes(char)
        if n_bytes > _HALF:
            return text[:index]
    return text


def _header_bytes(char: str) -> int:
    """Returns the length of a character in `grpc-message` (PROTOCOL-HTTP2, "Percent-Encoded")."""
    return 1 if " " <= char <= "~" and char != "%" else 3 * len(char.encode())
