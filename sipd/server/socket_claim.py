"""Unix socket files: a stale one is removed, a live daemon's one is refused, ours is removed at the end.

Invariant: nothing but a socket that nobody answers on is ever unlinked.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sipd.errors import ConfigError

_LOG = logging.getLogger("sipd.listen")
_CONNECT_TIMEOUT_S = 1.0
_UMASK = 0o117  # leaves 0660: owner and group may connect


def claim_socket_path(path: Path) -> None:
    """Makes `path` free to bind; raises ConfigError when a daemon answers there or it is no socket."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise ConfigError("listen", f"unix:{path}: directory {path.parent} does not exist") from None
        return
    except OSError as error:
        raise ConfigError("listen", f"unix:{path}: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise ConfigError("listen", f"unix:{path}: a file that is no socket is there; wanted a free path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_TIMEOUT_S)
        found = probe.connect_ex(str(path))
    if found not in (errno.ECONNREFUSED, errno.ENOENT):
        answer = "another daemon answers there" if found in (0, errno.EAGAIN) else os.strerror(found)
        raise ConfigError("listen", f"unix:{path}: {answer}; wanted a free path")
    path.unlink(missing_ok=True)
    _LOG.info("removed the stale socket %s", path)


@contextmanager
def socket_umask() -> Iterator[None]:
    """While active, new socket files get mode 0660 from the start; a later chmod would leave a gap."""
    before = os.umask(_UMASK)
    try:
        yield
    finally:
        os.umask(before)


class BoundSocket:
    """A socket file that this process made; `remove` takes away that file and no successor's."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = path.stat().st_ino

    def remove(self) -> None:
        """Unlinks the file if it is still the one that was bound."""
        try:
            if self._path.lstat().st_ino == self._inode:
                self._path.unlink()
        except FileNotFoundError:
            pass
