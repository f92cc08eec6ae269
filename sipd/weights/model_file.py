"""Opens a model file for its header; anything that is not a plain, readable file is refused by name.

Invariant: nothing here ever opens a file for writing, and opening never blocks (a FIFO is refused, not waited for).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from sipd.errors import ModelError
from sipd.plain_file import special_kind

_LFS_PREFIX = b"version https://git-lfs"
LFS_PREFIX_BYTES = len(_LFS_PREFIX)


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """What tells that a file is still the one whose header was read."""

    device: int
    inode: int
    size: int
    modified_ns: int


def open_model_file(path: Path, error: type[ModelError]) -> tuple[FileIO, FileIdentity]:
    """Returns the open unbuffered file and its identity; raises `error` when `path` is no readable plain file."""
    try:
        _refuse_special(path, path.stat().st_mode, error)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as fault:  # ValueError: a NUL byte in the path
        raise error(f"{path}: cannot be opened: {_reason(fault)}") from fault
    file = FileIO(descriptor, "rb")
    try:
        found = os.fstat(descriptor)
        _refuse_special(path, found.st_mode, error)  # the path may have been swapped since the first look
    except BaseException:
        file.close()
        raise
    return file, FileIdentity(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def read_exactly(file: FileIO, path: Path, offset: int, n_bytes: int, error: type[ModelError]) -> bytes:
    """Returns `n_bytes` at `offset`; raises `error` on a failing read or when the file has become shorter."""
    pieces: list[bytes] = []
    wanted = n_bytes
    try:
        file.seek(offset)
        while wanted:
            piece = file.read(wanted)
            if not piece:
                raise error(f"{path}: at byte {offset + n_bytes - wanted}: the file ended, wanted {wanted} bytes more")
            pieces.append(piece)
            wanted -= len(piece)
    except OSError as fault:
        raise error(f"{path}: at byte {offset}: reading {n_bytes} bytes failed: {_reason(fault)}") from fault
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def is_lfs_pointer(head: bytes) -> bool:
    """Whether a file that begins with `head` is a Git LFS pointer in place of the model."""
    return head.startswith(_LFS_PREFIX)


def _refuse_special(path: Path, mode: int, error: type[ModelError]) -> None:
    """Raises `error` naming the kind of file unless `mode` is that of a plain file."""
    if (kind := special_kind(mode)) is not None:
        raise error(f"{path}: found {kind}, wanted a plain file")


def _reason(fault: OSError | ValueError) -> str:
    """The operating system's words for a fault, without the path."""
    return (fault.strerror if isinstance(fault, OSError) else None) or str(fault)
