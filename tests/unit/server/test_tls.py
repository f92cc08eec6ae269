"""Certificates that change under a running server, and the addresses that speak TLS."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import grpc
import pytest

from sipd.cert import run_cert_init
from sipd.config import Config
from sipd.errors import ConfigError
from sipd.listen_address import ListenAddress
from sipd.server.certificates import CertificateFiles
from sipd.server.listener import Listener
from sipd.server.tls import ServerTls, configured_tls
from tests.certificates import TlsFolder, make_tls_folder


@pytest.fixture
def folder(tmp_path: Path) -> TlsFolder:
    return make_tls_folder(tmp_path / "tls")


def server_tls(folder: TlsFolder) -> ServerTls:
    return ServerTls(CertificateFiles(folder.path / "server.crt", folder.path / "server.key", None))


async def shown_certificate(port: int) -> str:
    """Returns what the server shows, as PEM."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return ssl.DER_cert_to_PEM_cert(shown)


def test_a_renewed_certificate_is_shown_on_every_port_and_a_bad_one_changes_nothing(folder: TlsFolder) -> None:
    async def main() -> None:
        tls = server_tls(folder)
        server = grpc.aio.server()
        ports = [server.add_secure_port("127.0.0.1:0", tls.credentials()) for _ in range(2)]
        await server.start()
        try:
            before = folder.read("server.crt").decode()
            assert [await shown_certificate(port) for port in ports] == [before] * 2
            run_cert_init(folder.path, [], renew=True, days=50)
            assert await shown_certificate(ports[0]) == before
            assert "server.crt" in tls.reload()
            after = folder.read("server.crt").decode()
            assert [await shown_certificate(port) for port in ports] == [after] * 2
            (folder.path / "server.key").write_text("no key")
            with pytest.raises(ConfigError, match=r"server\.key: holds no private key"):
                tls.reload()
            assert [await shown_certificate(port) for port in ports] == [after] * 2
        finally:
            await server.stop(0)

    asyncio.run(main())


def test_network_addresses_speak_tls_and_loopback_and_unix_stay_plain(folder: TlsFolder, tmp_path: Path) -> None:
    async def main() -> None:
        listener, server = Listener(server_tls(folder)), grpc.aio.server()
        addresses = [ListenAddress("0.0.0.0", 0), ListenAddress("127.0.0.1", 0), ListenAddress(f"{tmp_path}/s", None)]
        listener.bind(server, addresses)
        await server.start()
        try:
            network, loopback, _ = listener.bound
            assert network.port is not None
            assert await shown_certificate(network.port) == folder.read("server.crt").decode()
            for target in (str(loopback), f"unix:{tmp_path}/s"):
                async with grpc.aio.insecure_channel(target) as channel, asyncio.timeout(10.0):
                    await channel.channel_ready()
        finally:
            await server.stop(0)
            listener.remove_sockets()

    asyncio.run(main())


def test_without_settings_there_is_no_tls(folder: TlsFolder) -> None:
    assert configured_tls(Config()) is None
    config = Config(tls_cert=folder.path / "server.crt", tls_key=folder.path / "server.key")
    found = configured_tls(config)
    assert found is not None
    assert not found.requires_client_certificate


def test_a_client_authority_makes_client_certificates_required(folder: TlsFolder) -> None:
    ca, certificate, key = (folder.path / name for name in ("ca.crt", "server.crt", "server.key"))
    found = configured_tls(Config(tls_cert=certificate, tls_key=key, tls_client_ca=ca))
    assert found is not None
    assert found.requires_client_certificate
