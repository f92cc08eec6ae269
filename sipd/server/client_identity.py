"""Whose call it is: the name by which requests are counted, shared out fairly and written to the journal.

The rule, first match:
- the name of the bearer token: "token:NAME". Whoever accepts a token calls `remember_token_name`, in the task that goes
  on to run the call's handler, as interceptors do.
- the common name of the client's certificate, where `tls_client_ca` is set: "cert:NAME".
- for a peer on the network its IP address without the port, since one machine may open many connections:
  "ip:192.168.1.20".
- for loopback the connection, since unrelated programs share that address: "local:127.0.0.1:40512".
- for Unix sockets "local:unix": gRPC cannot tell their connections apart, so nobody is counted by that name.

Sessions outlive a connection: their names belong to the token, the IP address, or the machine ("local").
Invariant: a name is printable, not longer than MAX_NAME_CHARS, and never holds a token.
"""

from __future__ import annotations

import ipaddress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import grpc

MAX_NAME_CHARS = 64
# Of the task that serves one call: every call has its own, and it ends with the call.
_TOKEN_NAME: ContextVar[str | None] = ContextVar("sipd_token_name", default=None)


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """Whose call it is; `session_owner` is the scope of its session names."""

    name: str
    session_owner: str
    is_shared: bool = False  # several clients may stand behind the name


def remember_token_name(name: str) -> None:
    """Keeps the name of the token that the call under way came with."""
    _TOKEN_NAME.set(name)


def identify_client(context: grpc.aio.ServicerContext[Any, Any]) -> ClientIdentity:
    """Returns who is behind `context`; called in the task of the call's handler."""
    token_name = _TOKEN_NAME.get()
    if token_name is not None:
        name = _clean(f"token:{token_name}")
        return ClientIdentity(name, name)
    for common_name in context.auth_context().get("x509_common_name", ()):  # there only when it was verified
        name = _clean(f"cert:{common_name.decode('utf-8', 'replace')}")
        return ClientIdentity(name, name)
    return _identify_peer(unquote(context.peer()))


def _identify_peer(peer: str) -> ClientIdentity:
    """Returns who is behind "ipv4:192.168.1.20:40512", "ipv6:[fe80::1%eth0]:40512" or "unix:"."""
    family, _, address = peer.partition(":")
    if family not in ("ipv4", "ipv6"):
        return ClientIdentity("local:unix", "local", is_shared=True)
    ip = _parse_ip(address.rpartition(":")[0].strip("[]"))
    if ip is None or ip.is_loopback:
        return ClientIdentity(_clean(f"local:{address}"), "local")
    name = _clean(f"ip:{ip}")
    return ClientIdentity(name, name)


def _parse_ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Returns the address; an IPv4 one that came in through a socket of both families is told as IPv4."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return None
    return ip.ipv4_mapped or ip if isinstance(ip, ipaddress.IPv6Address) else ip


def _clean(name: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in name)[:MAX_NAME_CHARS]
