"""Where the daemon listens: one Unix socket path or one TCP host and port, checked as text."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

from sipd.foreign_text import sendable

MAX_SOCKET_PATH_BYTES = 107  # sun_path of unix(7) is 108 bytes with its final NUL
_MAX_PORT = 65535
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")  # gRPC takes these for characters of a path


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """`host` is a path when `port` is None."""

    host: str
    port: int | None

    @property
    def is_unix(self) -> bool:
        """True for a Unix socket."""
        return self.port is None

    @property
    def is_local(self) -> bool:
        """True when only this machine can reach it; a name other than localhost counts as the network."""
        if self.port is None or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        """Returns the text that gRPC and people use."""
        if self.port is None:
            return f"unix:{self.host}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listen_address(text: str) -> ListenAddress:
    """Returns the address that `text` names; raises ValueError with what was wanted."""
    if sendable(text) != text:
        raise ValueError(f"found {text!r:.200}, which is not UTF-8 or too long; wanted unix:PATH or HOST:PORT")
    if text.startswith("unix:"):
        return ListenAddress(_socket_path(text.removeprefix("unix:")), None)
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"found {text!r}, wanted IPv6 as [ADDRESS]:PORT")
    if not colon or not host or not port.isascii() or not port.isdecimal() or int(port) > _MAX_PORT:
        raise ValueError(f"found {text!r}, wanted unix:PATH or HOST:PORT")
    return ListenAddress(host, int(port))


def _socket_path(path: str) -> str:
    path = "/" + path.lstrip("/") if path.startswith("//") else path
    if not path or "\0" in path:
        raise ValueError(f"found unix:{path!r}, wanted unix:PATH")
    if path.startswith("~"):
        try:
            path = str(Path(path).expanduser())
        except RuntimeError as error:
            raise ValueError(f"found unix:{path!r}, wanted unix:PATH: {error}") from error
    if escape := _ESCAPE.search(path):
        raise ValueError(f"found unix:{path!r}, of which gRPC would decode {escape[0]}; wanted a path without it")
    n_bytes = len(path.encode())
    if n_bytes > MAX_SOCKET_PATH_BYTES:
        raise ValueError(
            f"socket path has {n_bytes} bytes, the system allows {MAX_SOCKET_PATH_BYTES}: {path}; wanted a shorter path"
        )
    return path
