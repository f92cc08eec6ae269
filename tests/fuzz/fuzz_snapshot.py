"""Fuzz target: a snapshot file of keys and values found on disk.

Invariant: a head that is believed agrees with the size of the file; pages are the bytes whose checksums it holds.
"""

from __future__ import annotations

import struct
import zlib

from sipd.engine.snapshot_file import read_head, read_pages
from tests.fuzz.bounds import bounded, folder
from tests.unit.engine.snapshot_pages import KEY, PAGE_BYTES, empty_pages

DICTIONARY = (b"SIPDKV\x00\x01", b"f16 k,v", b"\x01" * 32, struct.pack("<I", PAGE_BYTES), b"\x00" * 4)
CHECKSUM_AT = 12
ALIGNMENT = 4096


def TestOneInput(data: bytes) -> None:  # noqa: N802 - the name that fuzzers look for
    """Reads what follows the first byte; an odd first byte makes the head's checksum right beforehand."""
    content = bytearray(data[1:])
    if data[:1] and data[0] % 2 and len(content) >= ALIGNMENT:
        struct.pack_into("<I", content, CHECKSUM_AT, 0)
        struct.pack_into("<I", content, CHECKSUM_AT, zlib.crc32(content[:ALIGNMENT]))
    path = folder() / "input.kv"
    path.write_bytes(content)
    with bounded():
        head = read_head(path, KEY)
        n_pages = len(head.checksums)
        assert head.n_bytes == len(content) == head.pages_offset + n_pages * PAGE_BYTES
        assert len(head.ids) % 4 == 0
        pages = empty_pages(n_pages)
        read_pages(path, KEY, head.ids, head.first_page, pages)
        assert b"".join(pages) == content[head.pages_offset :]
