from __future__ import annotations

from contextvars import copy_context
from typing import Any, cast

import pytest

from sipd.server.client_identity import MAX_NAME_CHARS, ClientIdentity, identify_client, remember_token_name


class Context:
    """Of gRPC's context all that is asked."""

    def __init__(self, peer: str, common_name: str | None) -> None:
        self._peer = peer
        self._common_name = common_name

    def peer(self) -> str:
        return self._peer

    def auth_context(self) -> dict[str, list[bytes]]:
        return {} if self._common_name is None else {"x509_common_name": [self._common_name.encode()]}


def identify(peer: str, token_name: str | None = None, common_name: str | None = None) -> ClientIdentity:
    """Returns who calls, in a context of its own as every call has one."""

    def inside() -> ClientIdentity:
        if token_name is not None:
            remember_token_name(token_name)
        return identify_client(cast("Any", Context(peer, common_name)))

    return copy_context().run(inside)


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        ("ipv4:192.168.1.20:40512", "ip:192.168.1.20"),
        ("ipv6:%5B2001:db8::7%5D:40512", "ip:2001:db8::7"),
        ("ipv6:%5Bfe80::1%25eth0%5D:40512", "ip:fe80::1%eth0"),
        ("ipv6:%5B::ffff:192.168.1.20%5D:40512", "ip:192.168.1.20"),
    ],
)
def test_a_peer_on_the_network_is_its_address_without_the_port(peer: str, name: str) -> None:
    assert identify(peer) == ClientIdentity(name, name)


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        ("ipv4:127.0.0.1:40512", "local:127.0.0.1:40512"),
        ("ipv6:%5B::1%5D:40512", "local:[::1]:40512"),
        ("ipv6:%5B::ffff:127.0.0.1%5D:40512", "local:[::ffff:127.0.0.1]:40512"),
    ],
)
def test_on_loopback_every_connection_is_a_client_and_sessions_belong_to_the_machine(peer: str, name: str) -> None:
    assert identify(peer) == ClientIdentity(name, "local")


@pytest.mark.parametrize("peer", ["unix:", "unix:/run/sipd/client.sock", ""])
def test_unix_sockets_cannot_be_told_apart_and_say_so(peer: str) -> None:
    assert identify(peer) == ClientIdentity("local:unix", "local", is_shared=True)


@pytest.mark.parametrize("peer", ["unix:", "ipv4:127.0.0.1:40512", "ipv4:192.168.1.20:40512"])
def test_a_token_name_goes_before_every_address(peer: str) -> None:
    assert identify(peer, "kitchen") == ClientIdentity("token:kitchen", "token:kitchen")


def test_a_token_name_ends_with_its_call() -> None:
    identify("unix:", "kitchen")
    assert identify("unix:").name == "local:unix"


def test_an_odd_name_is_made_printable_and_bounded() -> None:
    name = identify("unix:", "a\nb\x00" + "x" * 200).name
    assert name.startswith("token:a?b?x")
    assert len(name) == MAX_NAME_CHARS


def test_a_client_certificate_names_its_client_unless_a_token_does() -> None:
    peer = "ipv4:192.168.1.20:40512"
    assert identify(peer, common_name="phone") == ClientIdentity("cert:phone", "cert:phone")
    assert identify(peer, "kitchen", "phone").name == "token:kitchen"
