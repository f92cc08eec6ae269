"""One file that holds a run of KV pages and the ids of every token they depend on: written, checked, read.

Invariant: nothing of a file is believed before its header, its lengths against the size of the file, the checksum of
its head and, for pages, their own checksums have been found right. A file has its name only when it is whole and on
disk. It holds what users wrote, as token ids, and is therefore made with mode 0600. No disk reads into a page or writes
from one: there is a buffer between, and the copying is done under the caller's `hold`, so that pages can be taken away.

Layout, little-endian: `_HEADER` (256 bytes), n_positions u32 token ids from position 0 on, n_pages u32 CRC-32 of the
pages, zeros up to a multiple of 4096, then the pages [first_page, first_page + n_pages) of the sequence. Its CRC-32
covers all that comes before the pages, its own field taken as 0. Pages keep the byte order of the machine, which is
part of the key's `kv_layout` where that matters.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import stat
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from sipd.engine.kv_cache import pages_for
from sipd.engine.snapshot_lease import Hold
from sipd.errors import StorageFault
from sipd.kernels.binding import PAGE_POSITIONS

MAGIC = b"SIPDKV\x00\x01"
VERSION = 1
SUFFIX = ".kv"
PART_SUFFIX = ".part"
COMMON = bytes(32)  # the owner of what belongs to nobody
MAX_POSITIONS = 1 << 20  # eight times the longest context of any supported model; bounds what a header can ask for

# magic, version, checksum, contract, page_bytes, page_positions, first_page, n_pages, n_positions,
# lengths of model_digest and kv_layout, these two, owner
_HEADER = struct.Struct("<8s8IBB2x64s64s32s52x")
_CHECKSUM = slice(12, 16)
_ALIGNMENT = 4096
_PIECE_BYTES = 4 << 20  # cached or dirty at any time, so that a small memory cgroup is not filled with file pages
BUFFER_BYTES = 128 << 10  # between disk and pages
_SPARE_BYTES = 16 << 20  # a disk filled to the last byte breaks its other users


@dataclass(frozen=True, slots=True)
class ModelKey:
    """What pages depend on beside the tokens; pages of different keys never meet."""

    model_digest: bytes  # 1 to 64 bytes
    contract: int  # version of the arithmetic
    kv_layout: str  # type and order of what a page holds, at most 64 bytes
    page_bytes: int

    def __post_init__(self) -> None:
        assert 0 < len(self.model_digest) <= 64, self.model_digest
        assert len(self.kv_layout.encode()) <= 64, self.kv_layout
        assert 0 <= self.contract < 1 << 32, self.contract
        assert 0 < self.page_bytes < 1 << 32, self.page_bytes

    def folder_name(self) -> str:
        """The name of the folder that holds the files of this key and of this version of the format."""
        parts = (VERSION, PAGE_POSITIONS, self.contract, self.page_bytes, self.model_digest.hex(), self.kv_layout)
        return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class SnapshotHead:
    """All of a file but its pages."""

    first_page: int
    ids: bytes  # u32 little-endian, of every position from 0 on
    checksums: tuple[int, ...]  # CRC-32 of each page
    owner: bytes = COMMON
    n_bytes: int = 0  # of the whole file

    @property
    def pages_offset(self) -> int:
        """Where in the file the pages begin."""
        return _pages_offset(len(self.ids) // 4, len(self.checksums))


def file_bytes(key: ModelKey, n_positions: int, first_page: int) -> int:
    """Returns the size of the file that holds the pages from `first_page` to the end of `n_positions`."""
    n_pages = pages_for(n_positions) - first_page
    return _pages_offset(n_positions, n_pages) + n_pages * key.page_bytes


def read_head(path: Path, key: ModelKey) -> SnapshotHead:
    """Returns the head of a file, checked against `key`; blocks for the read of it.

    Raises StorageFault for whatever is not a whole regular file of this key, version and format.
    """
    fd = _open(path)
    try:
        head = _read_head(fd, path, key)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
    return head


def read_pages(  # noqa: PLR0917 - what a file is found by
    path: Path,
    key: ModelKey,
    ids: bytes,
    first_page: int,
    into: Sequence[memoryview],
    hold: Hold = nullcontext,
) -> None:
    """Fills `into` with the pages from `first_page` of the sequence on, and marks the file as used now; blocks.

    Raises StorageFault when the file is not the one of `ids`, lacks some of the pages, cannot be read, or a page's
    checksum is wrong, and what `hold` raises; `into` is then undefined. Leaves nothing of the file in the page cache.
    """
    fd = _open(path)
    try:
        head = _read_head(fd, path, key)
        if head.ids != ids:
            raise StorageFault(str(path), _HEADER.size, "holds other token ids than those wanted")
        skipped = first_page - head.first_page
        if not 0 <= skipped <= len(head.checksums) - len(into):
            found = f"pages {head.first_page} to {head.first_page + len(head.checksums)}"
            wanted = f"{first_page} to {first_page + len(into)}"
            raise StorageFault(str(path), 0, f"holds {found}, wanted {wanted}")
        offset = forgotten = head.pages_offset + skipped * key.page_bytes
        buffer = memoryview(bytearray(min(BUFFER_BYTES, key.page_bytes)))
        for index, page in enumerate(into, skipped):
            checksum = 0
            for part in _parts(page):
                piece = buffer[: len(part)]
                offset += _read_exactly(fd, path, piece, offset)
                checksum = zlib.crc32(piece, checksum)
                with hold():
                    part[:] = piece
                if offset - forgotten >= _PIECE_BYTES:
                    os.posix_fadvise(fd, forgotten, offset - forgotten, os.POSIX_FADV_DONTNEED)
                    forgotten = offset
            if checksum != head.checksums[index]:
                at = head.pages_offset + index * key.page_bytes
                raise StorageFault(str(path), at, f"page {index} has a wrong checksum")
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        with suppress(OSError):  # a read-only file system keeps no time of use
            os.utime(fd)
    finally:
        os.close(fd)


def write_file(  # noqa: PLR0917 - what a file is made of
    path: Path,
    key: ModelKey,
    head: SnapshotHead,
    pages: Sequence[memoryview],
    between: Callable[[], None],
    hold: Hold = nullcontext,
) -> None:
    """Writes a file under a temporary name, brings it to disk and names it `path`; `head` needs no checksums.

    `between` is called every few MiB and may raise to give up, as may `hold`. Raises OSError (disk full before the last
    16 MiB of it are touched, read-only file system, …), and leaves nothing behind then.
    """
    checksums = []
    for page in pages:
        with hold():
            checksums.append(zlib.crc32(page))
        between()
    start = _pack(key, replace(head, checksums=tuple(checksums)))
    n_bytes = len(start) + len(pages) * key.page_bytes
    if free_bytes(path.parent) < n_bytes:
        raise no_room(path.parent, n_bytes)
    part = path.with_name(f"{path.stem}.{secrets.token_hex(8)}{PART_SUFFIX}")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        # tells another daemon that this is no leftover of a crash
        fcntl.flock(fd, fcntl.LOCK_EX)
        offset = synced = 0
        buffer = memoryview(bytearray(min(BUFFER_BYTES, max(key.page_bytes, len(start)))))
        for source in (each for view in (memoryview(start), *pages) for each in _parts(view)):
            if offset + len(source) - synced > _PIECE_BYTES:
                os.fdatasync(fd)
                os.posix_fadvise(fd, synced, offset - synced, os.POSIX_FADV_DONTNEED)
                synced = offset
                between()
            piece = buffer[: len(source)]
            with hold():
                piece[:] = source
            offset += _write_all(fd, piece, offset)
        os.fdatasync(fd)
        os.posix_fadvise(fd, synced, offset - synced, os.POSIX_FADV_DONTNEED)
        between()
        os.fsync(fd)
        part.replace(path)
    except BaseException:
        remove(part)
        raise
    finally:
        os.close(fd)
    _sync_folder(path.parent)


def free_bytes(folder: Path) -> int:
    """Returns the bytes that may still be written to a folder's disk, less than 0 when the spare ones are in use."""
    volume = os.statvfs(folder)
    return volume.f_bavail * volume.f_frsize - _SPARE_BYTES


def no_room(folder: Path, n_bytes: int) -> OSError:
    """Returns the error for a file that the disk of `folder` has no room for."""
    return OSError(errno.ENOSPC, f"{n_bytes} bytes and {_SPARE_BYTES} to spare do not fit", str(folder))


def remove(path: Path) -> bool:
    """Removes a file, never what a link points to; returns whether it is gone."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def remove_if_left_over(part: Path) -> None:
    """Removes a temporary file unless someone is writing it."""
    with suppress(OSError):
        fd = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()
        finally:
            os.close(fd)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _pages_offset(n_positions: int, n_pages: int) -> int:
    return -(-(_HEADER.size + 4 * (n_positions + n_pages)) // _ALIGNMENT) * _ALIGNMENT


def _open(path: Path) -> int:
    """Returns a descriptor; O_NONBLOCK, because opening a FIFO would wait for a writer."""
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise StorageFault(str(path), 0, f"cannot be opened: {error.strerror}") from error


def _pack(key: ModelKey, head: SnapshotHead) -> bytes:
    n_positions, n_pages = len(head.ids) // 4, len(head.checksums)
    start = bytearray(_pages_offset(n_positions, n_pages))
    layout = key.kv_layout.encode()
    sizes = (key.contract, key.page_bytes, PAGE_POSITIONS, head.first_page, n_pages, n_positions)
    texts = (len(key.model_digest), len(layout), key.model_digest, layout, head.owner)
    _HEADER.pack_into(start, 0, MAGIC, VERSION, 0, *sizes, *texts)
    body = head.ids + struct.pack(f"<{n_pages}I", *head.checksums)
    start[_HEADER.size : _HEADER.size + len(body)] = body
    start[_CHECKSUM] = zlib.crc32(start).to_bytes(4, "little")
    return bytes(start)


def _read_head(fd: int, path: Path, key: ModelKey) -> SnapshotHead:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise StorageFault(str(path), 0, "is no regular file")
    fixed = bytearray(_HEADER.size)
    _read_exactly(fd, path, memoryview(fixed), 0)
    magic, version, checksum, *sizes = _HEADER.unpack(fixed)
    contract, page_bytes, page_positions, first_page, n_pages, n_positions, *texts = sizes
    digest_length, layout_length, digest, layout, owner = texts
    layout_wanted = key.kv_layout.encode()
    for name, found, wanted in (
        ("magic", magic, MAGIC),
        ("version", version, VERSION),
        ("arithmetic contract", contract, key.contract),
        ("bytes of a page", page_bytes, key.page_bytes),
        ("positions of a page", page_positions, PAGE_POSITIONS),
        ("model digest", (digest_length, digest), (len(key.model_digest), key.model_digest.ljust(64, b"\0"))),
        ("kv layout", (layout_length, layout), (len(layout_wanted), layout_wanted.ljust(64, b"\0"))),
    ):
        if found != wanted:
            raise StorageFault(str(path), 0, f"{name} is {found!r}, wanted {wanted!r}")
    if not 0 < n_positions <= MAX_POSITIONS:
        raise StorageFault(str(path), 0, f"{n_positions} positions, wanted 1 to {MAX_POSITIONS}")
    if n_pages == 0 or first_page + n_pages != pages_for(n_positions):
        raise StorageFault(
            str(path), 0, f"pages {first_page} to {first_page + n_pages}, wanted an end at {pages_for(n_positions)}"
        )
    wanted_bytes = file_bytes(key, n_positions, first_page)
    if status.st_size != wanted_bytes:
        raise StorageFault(str(path), status.st_size, f"has {status.st_size} bytes, wanted {wanted_bytes}")
    start = bytearray(_pages_offset(n_positions, n_pages))
    _read_exactly(fd, path, memoryview(start), 0)
    start[_CHECKSUM] = bytes(4)
    if zlib.crc32(start) != checksum:
        raise StorageFault(str(path), 0, "the head has a wrong checksum")
    ids_end = _HEADER.size + 4 * n_positions
    checksums = struct.unpack_from(f"<{n_pages}I", start, ids_end)
    return SnapshotHead(first_page, bytes(start[_HEADER.size : ids_end]), checksums, owner, wanted_bytes)


def _parts(view: memoryview) -> Iterator[memoryview]:
    """Yields the bytes of a view in parts that the buffer holds."""
    content = view.cast("B")
    step = min(BUFFER_BYTES, _PIECE_BYTES)
    for start in range(0, len(content), step):
        yield content[start : start + step]


def _read_exactly(fd: int, path: Path, into: memoryview, offset: int) -> int:
    """Fills `into` from `offset` on and returns its bytes; raises StorageFault at the end of the file or EIO."""
    n_read = 0
    while n_read < len(into):
        try:
            count = os.preadv(fd, [into[n_read:]], offset + n_read)
        except OSError as error:
            raise StorageFault(str(path), offset + n_read, f"reading failed: {error.strerror}") from error
        if count == 0:
            raise StorageFault(str(path), offset + n_read, "the file ends here")
        n_read += count
    return n_read


def _write_all(fd: int, content: memoryview, offset: int) -> int:
    """Writes all of `content` at `offset` and returns its bytes; raises OSError."""
    n_written = 0
    while n_written < len(content):
        n_written += os.pwritev(fd, [content[n_written:]], offset + n_written)
    return n_written
