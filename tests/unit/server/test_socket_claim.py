from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from sipd.errors import ConfigError
from sipd.listen_address import ListenAddress, parse_listen_address
from sipd.server.listener import Listener
from sipd.server.socket_claim import BoundSocket, claim_socket_path


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Path]:
    """A socket that somebody answers on."""
    path = tmp_path / "live.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(1)
        yield path


@pytest.fixture
def stale(tmp_path: Path) -> Path:
    """A socket file whose daemon is dead."""
    path = tmp_path / "stale.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
    return path


def _mode(path: str) -> int:
    return stat.S_IMODE(Path(path).stat().st_mode)


def bind(addresses: list[ListenAddress]) -> tuple[list[ListenAddress], list[int]]:
    """Binds and removes again; returns what was bound and the modes of the socket files."""

    async def main() -> tuple[list[ListenAddress], list[int]]:
        listener, server = Listener(), grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        try:
            listener.bind(server, addresses)
            modes = [_mode(each.host) for each in listener.bound if each.is_unix]
            return listener.bound, modes
        finally:
            await server.stop(0)
            listener.remove_sockets()

    return asyncio.run(main())


def test_a_stale_socket_is_removed(stale: Path) -> None:
    claim_socket_path(stale)
    assert not stale.exists()


def test_a_live_daemons_socket_is_refused_and_kept(live: Path) -> None:
    with pytest.raises(ConfigError, match="another daemon answers there"):
        claim_socket_path(live)
    assert live.exists()


def test_a_file_that_is_no_socket_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="no socket"):
        claim_socket_path(path)
    assert path.read_text() == "precious"


def test_a_link_to_a_socket_is_refused_and_kept(tmp_path: Path, stale: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(stale)
    with pytest.raises(ConfigError, match="no socket"):
        claim_socket_path(link)
    assert stale.exists()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"directory .*/run does not exist"):
        claim_socket_path(tmp_path / "run" / "s")


def test_a_free_path_is_taken(tmp_path: Path) -> None:
    claim_socket_path(tmp_path / "s")


def test_at_the_end_a_successors_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        first.bind(str(path))
        ours = BoundSocket(path)
        path.rename(tmp_path / "old")  # keeps the inode in use
        second.bind(str(path))
        ours.remove()
        assert path.exists()


def test_owner_and_group_may_connect_and_the_file_is_gone_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "s"
    _, modes = bind([ListenAddress(str(path), None)])
    assert modes == [0o660]
    assert not path.exists()


def test_several_addresses_are_bound_and_the_chosen_port_is_told(tmp_path: Path) -> None:
    bound, _ = bind([ListenAddress(str(tmp_path / "s"), None), parse_listen_address("127.0.0.1:0")])
    assert bound[1].port


def test_a_port_in_use_is_a_configuration_error_and_no_socket_stays(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        addresses = [ListenAddress(str(tmp_path / "s"), None), ListenAddress("127.0.0.1", taken.getsockname()[1])]
        with pytest.raises(ConfigError, match=r"listen: cannot listen on 127\.0\.0\.1"):
            bind(addresses)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_name_of_which_one_address_is_taken_is_refused_as_a_whole(family: int, host: str) -> None:
    with socket.socket(family) as taken:
        try:
            taken.bind((host, 0))
        except OSError as error:
            pytest.skip(f"{host} is not to be had here: {error}")
        taken.listen(1)
        address = ListenAddress("localhost", taken.getsockname()[1])
        with pytest.raises(ConfigError, match=rf"listen on localhost:\d+: {host} has that port in use; wanted"):
            bind([address])


def test_a_name_whose_port_is_free_is_bound() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = ListenAddress("localhost", free.getsockname()[1])
    assert bind([address])[0] == [address]
