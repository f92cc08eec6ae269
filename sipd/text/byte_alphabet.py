"""GPT-2's alphabet: a printable character for each of the 256 byte values.

Invariant: the mapping is one to one, and no character of it is a space or a control character.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType


def _byte_of_char() -> Mapping[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return MappingProxyType(table)


BYTE_OF_CHAR = _byte_of_char()


def piece_bytes(piece: str) -> bytes:
    """Returns the bytes that a byte-level piece stands for; a character outside the alphabet stands for itself."""
    try:
        return bytes(map(BYTE_OF_CHAR.__getitem__, piece))
    except KeyError:
        return b"".join(_char_bytes(char) for char in piece)


def _char_bytes(char: str) -> bytes:
    byte = BYTE_OF_CHAR.get(char)
    return char.encode() if byte is None else bytes((byte,))
