"""The names and addresses by which clients reach this machine, as the kernel tells them."""

from __future__ import annotations

import ipaddress
import itertools
import re
import socket
from collections.abc import Iterable
from pathlib import Path

from sipd.errors import ConfigError

_NET = Path("/proc/net")
_DNS_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,62}))*")
_MAX_DNS_CHARS = 253
_IPV6_GLOBAL_SCOPE = "00"
_IPV6_TEMPORARY = 0x01  # IFA_F_TEMPORARY: gone tomorrow


def check_name(name: str) -> str:
    """Returns `name` when it is an IP address or a DNS name, else raises ConfigError."""
    if _is_ip(name) or (len(name) <= _MAX_DNS_CHARS and _DNS_NAME.fullmatch(name)):
        return name
    raise ConfigError("name", f"found {name!r}, wanted a DNS name or an IP address")


def machine_names(host: str | None = None, net: Path = _NET) -> list[str]:
    """Returns the host name, host.local, localhost and the addresses; link-local IPv6 ones carry a zone, left out."""
    host = check_name((host or socket.gethostname()).rstrip(".").lower())
    short = host.split(".")[0]
    return unique([host, short, f"{short}.local", "localhost", "127.0.0.1", "::1", *_ipv4(net), *_ipv6(net)])


def alternative_name(name: str) -> str:
    """Returns the form of a certificate's subjectAltName."""
    return f"IP:{name}" if _is_ip(name) else f"DNS:{name}"


def unique(names: Iterable[str]) -> list[str]:
    """Returns the names in their order, each once."""
    return list(dict.fromkeys(names))


def _is_ip(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return "%" not in name


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("ascii").splitlines()
    except OSError:  # a kernel without that family
        return []


def _ipv4(net: Path) -> list[str]:
    """Returns the addresses that fib_trie marks as LOCAL hosts: each stands on the line above its mark."""
    lines = _lines(net / "fib_trie")
    found = [above.split()[-1] for above, mark in itertools.pairwise(lines) if "/32 host LOCAL" in mark]
    return [address for address in found if _is_ip(address) and not ipaddress.ip_address(address).is_loopback]


def _ipv6(net: Path) -> list[str]:
    """Returns the lasting addresses of global scope in if_inet6: address, index, prefix, scope, flags, device."""
    rows = [line.split() for line in _lines(net / "if_inet6")]
    return [
        str(ipaddress.IPv6Address(int(row[0], 16)))
        for row in rows
        if len(row) == 6 and row[3] == _IPV6_GLOBAL_SCOPE and not int(row[4], 16) & _IPV6_TEMPORARY
    ]
