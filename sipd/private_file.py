"""Files that hold secrets: replaced whole, durably, and readable by nobody new."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from sipd.stored_file import commit


def replace_private(path: Path, content: bytes) -> None:
    """Gives `path` new content, with the owner and mode it had or mode 0600; raises OSError."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if path.exists():
                before = path.stat()
                os.fchown(file.fileno(), before.st_uid, before.st_gid)
                os.fchmod(file.fileno(), before.st_mode & 0o777)
        commit(part, path)
    finally:
        part.unlink(missing_ok=True)
