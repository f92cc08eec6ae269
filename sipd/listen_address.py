"""Where the daemon listens: one Unix socket path or one TCP host and port, checked as text."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

MAX_SOCKET_PATH_BYTES = 107  # sun_path of unix(7) is 108 bytes with its final NUL
_MAX_PORT = 65535


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
    n_bytes = len(path.encode("utf-8", "surrogateescape"))
    if not path or "\0" in path:
        raise ValueError(f"found unix:{path!r}, wanted unix:PATH")
    if n_bytes > MAX_SOCKET_PATH_BYTES:
        raise ValueError(
            f"socket path has {n_bytes} bytes, the system allows {MAX_SOCKET_PATH_BYTES}: {path}; wanted a shorter path"
        )
    return path
