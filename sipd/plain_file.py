"""Plain files that are read whole: settings, tokens, certificates. What else stands at such a path is refused by name.

Invariant: opening never blocks and reading comes to an end: a FIFO would wait for a writer, and a device may go on for
ever.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_MOST_BYTES = 1024**2  # settings, tokens and certificates are a few KiB
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


def special_kind(mode: int) -> str | None:
    """Returns what a file is that is not plain ("a FIFO"), or None for a plain one."""
    if stat.S_ISREG(mode):
        return None
    return next((name for is_kind, name in _KINDS if is_kind(mode)), "a special file")


def read_plain_file(path: Path, most_bytes: int = _MOST_BYTES) -> bytes:
    """Returns the content of the plain file at `path`, links followed; raises OSError, for a special one too."""
    _refuse_special(path.stat().st_mode)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        _refuse_special(found.st_mode)  # the path may have been swapped since the first look
        if found.st_size > most_bytes:
            raise OSError(f"found {found.st_size} bytes, wanted at most {most_bytes}")
        return file.read()


def _refuse_special(mode: int) -> None:
    kind = special_kind(mode)
    if kind is not None:
        raise OSError(f"found {kind}, wanted a plain file")
