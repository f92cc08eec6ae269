from __future__ import annotations

import pytest

from sipd.listen_address import parse_listen_address


@pytest.mark.parametrize("text", ["unix:/run/sipd.sock", "127.0.0.1:50051", "[::1]:50051", "board.local:1"])
def test_an_address_prints_as_it_was_written(text: str) -> None:
    assert str(parse_listen_address(text)) == text


@pytest.mark.parametrize("text", ["unix:/run/s", "127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1"])
def test_what_only_this_machine_reaches_is_local(text: str) -> None:
    assert parse_listen_address(text).is_local


@pytest.mark.parametrize("text", ["0.0.0.0:1", "[::]:1", "192.168.1.2:1", "board.local:1"])
def test_what_others_reach_is_not_local(text: str) -> None:
    assert not parse_listen_address(text).is_local


@pytest.mark.parametrize("text", ["", "50051", ":50051", "host:", "host:65536", "host:-1", "::1:50051", "unix:", "a:b"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="wanted"):
        parse_listen_address(text)


@pytest.mark.parametrize("path", ["/run/a b.sock", "/run/50%.sock", "/run/%zz.sock", "/run/é.sock", "./~s.sock"])
def test_a_socket_path_that_grpc_takes_as_it_is_may_hold_anything(path: str) -> None:
    assert parse_listen_address(f"unix:{path}").host == path


def test_a_socket_path_that_grpc_would_bind_elsewhere_is_refused_with_what_it_decodes() -> None:
    with pytest.raises(ValueError, match="gRPC would decode %2f; wanted a path without it"):
        parse_listen_address("unix:/run/a%2fb.sock")


def test_a_socket_path_longer_than_the_system_allows_is_refused_with_both_lengths() -> None:
    with pytest.raises(ValueError, match="has 123 bytes, the system allows 107"):
        parse_listen_address("unix:/a/" + "x" * 120)


def test_a_socket_path_of_107_bytes_is_taken() -> None:
    assert parse_listen_address("unix:/" + "x" * 106).is_unix
