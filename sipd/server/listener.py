"""Binds the addresses that the daemon listens on; all of them or none.

Invariant: with TLS set, every address that the network reaches speaks TLS alone; loopback and Unix sockets stay plain,
since nobody else can listen in there and local programs need no certificate.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc

from sipd.errors import ConfigError
from sipd.listen_address import ListenAddress
from sipd.server.socket_claim import BoundSocket, claim_socket_path, socket_umask
from sipd.server.tls import ServerTls

_LOG = logging.getLogger("sipd.listen")


class Listener:
    """The bound addresses of one server; owned by the event loop's thread."""

    def __init__(self, tls: ServerTls | None = None) -> None:
        self.bound: list[ListenAddress] = []
        self._tls = tls
        self._sockets: list[BoundSocket] = []

    def bind(self, server: grpc.aio.Server, addresses: Sequence[ListenAddress]) -> None:
        """Binds every address; raises ConfigError naming the one that cannot be bound, and leaves no socket behind."""
        try:
            for address in addresses:
                self._bind_one(server, address)
        except ConfigError:
            self.remove_sockets()
            raise

    def remove_sockets(self) -> None:
        """Removes the socket files that this process made."""
        while self._sockets:
            self._sockets.pop().remove()

    def _bind_one(self, server: grpc.aio.Server, address: ListenAddress) -> None:
        if address.is_unix:
            claim_socket_path(Path(address.host))
        else:
            _refuse_taken_port(address)
        try:
            with socket_umask():
                port = self._add_port(server, address)
        except RuntimeError as error:
            raise ConfigError("listen", f"cannot listen on {address}: {error}") from error
        if address.is_unix:
            self._sockets.append(BoundSocket(Path(address.host)))
            self.bound.append(address)
        else:
            self.bound.append(ListenAddress(address.host, port))
        if not address.is_local and self._tls is None:
            _LOG.warning("%s can be reached from the network, unencrypted", self.bound[-1])

    def _add_port(self, server: grpc.aio.Server, address: ListenAddress) -> int:
        if address.is_local or self._tls is None:
            return server.add_insecure_port(str(address))
        return server.add_secure_port(str(address), self._tls.credentials())


def _refuse_taken_port(address: ListenAddress) -> None:
    """Raises ConfigError when any address of the name is taken: gRPC is content with binding one of them."""
    for family, place in _places(address):
        with (
            suppress(OSError),
            socket.socket(family, socket.SOCK_STREAM) as probe,
        ):  # what is not here is gRPC's to tell
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if _is_taken(probe, place):
                raise ConfigError(
                    "listen", f"cannot listen on {address}: {place[0]} has that port in use; wanted a free one"
                )


def _is_taken(probe: socket.socket, place: tuple[Any, ...]) -> bool:
    try:
        probe.bind(place)
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


def _places(address: ListenAddress) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yields family and socket address of everything that gRPC would bind."""
    if address.host == "localhost":  # gRPC binds both, whatever a resolver says
        yield socket.AF_INET, ("127.0.0.1", address.port)
        yield socket.AF_INET6, ("::1", address.port)
        return
    with suppress(OSError):
        for family, _, _, _, place in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM):
            yield family, place
