"""How a client reaches the daemon: target, channel options, TLS and token."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

DEFAULT_TARGET = "unix:/run/sipd/sipd.sock"
UNARY_TIMEOUT_S = 30.0  # answers that do not wait for the engine; a board that swaps may need seconds
IDLE_TIMEOUT_S = 60.0  # the daemon sends an event every few seconds; a stalled card can add some
_MAX_SOCKET_PATH = 107  # sun_path of Linux, without its closing zero
_RESPONSE_BYTES = 16 * 1024 * 1024  # token ids of a long text exceed gRPC's default of 4 MiB

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", 20_000),  # notices a dead board in a long silence; the daemon takes pings from 10 s
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),  # 0: no limit; prefill sends little data
    ("grpc.enable_http_proxy", 0),  # the daemon is in the house; a proxy for the web would not reach it
    ("grpc.max_receive_message_length", _RESPONSE_BYTES),
)


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM data for an encrypted connection; all None: public authorities, no client certificate."""

    ca: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = None

    @classmethod
    def from_files(cls, ca: str | None = None, certificate: str | None = None, key: str | None = None) -> Tls:
        """Returns the PEM data of three files. Raises OSError."""
        return cls(*(None if name is None else Path(name).read_bytes() for name in (ca, certificate, key)))

    def credentials(self) -> grpc.ChannelCredentials:
        """Returns them for gRPC."""
        return grpc.ssl_channel_credentials(self.ca, self.key, self.certificate)


def check_target(target: str) -> str:
    """Returns `target`; raises ValueError unless it is unix:PATH (at most 107 bytes) or has a port."""
    if target.startswith("unix:"):
        path = target.removeprefix("unix:").removeprefix("//")
        n_bytes = len(path.encode("utf-8", "surrogateescape"))
        if not 0 < n_bytes <= _MAX_SOCKET_PATH:
            raise ValueError(f"target {target!r}: socket path has {n_bytes} bytes, wanted 1 to {_MAX_SOCKET_PATH}")
    elif not target.rpartition(":")[2].isdigit():
        raise ValueError(f"target {target!r}: wanted unix:PATH or HOST:PORT")
    return target


def call_metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    """Returns the metadata that carries the bearer token."""
    return () if token is None else (("authorization", f"Bearer {token}"),)
