"""A file on its way to its name: digest, room for it, and the atomic rename.

Invariant: a name is given only to a whole file that is on disk.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from sipd.errors import PullError
from sipd.progress_line import ProgressLine
from sipd.size import format_size

_CHUNK_BYTES = 1024**2
_SPARE_BYTES = 16 * 1024**2  # a disk filled to the last byte breaks its other users


def file_sha256(path: Path) -> str:
    """Returns the digest of a file in hexadecimal; blocks for a read of it."""
    with path.open("rb") as file, ProgressLine(f"verifying {path.name}", path.stat().st_size) as progress:
        digest = hashlib.sha256()
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            progress.advance(len(chunk))
    return digest.hexdigest()


def require_space(folder: Path, n_bytes: int) -> None:
    """Raises PullError unless `n_bytes` and a spare fit on the file system of `folder`."""
    free = shutil.disk_usage(folder).free
    if free < n_bytes + _SPARE_BYTES:
        raise PullError(
            f"{folder}: {format_size(free)} free, wanted {format_size(n_bytes + _SPARE_BYTES)}; "
            "free some space or choose another folder with --to"
        )


def commit(part: Path, target: Path) -> None:
    """Gives a complete file its final name, durably: a power cut leaves the old state or the new one."""
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(target)
    descriptor = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
