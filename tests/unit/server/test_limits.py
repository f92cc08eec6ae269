"""What strangers can hold: headers, connections and handshakes that never end, against a real gRPC server."""

# ruff: noqa: ANN401 - grpc's channels and calls are untyped

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from sipd.config import Config
from sipd.server import service as limits
from sipd.server.certificates import CertificateFiles
from sipd.server.events import Events
from sipd.server.journal import RequestJournal
from sipd.server.service import STATUS, build_service
from sipd.server.service_state import DaemonState, ServiceState
from sipd.server.tls import ServerTls
from tests.certificates import TlsFolder, make_tls_folder
from tests.unit.server.fakes import WAIT_S, FakeEngine, served_model

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # and empty SETTINGS
CLIENT_HELLO_BEGIN = b"\x16\x03\x01\x02\x00\x01"


@dataclass(frozen=True, slots=True)
class Ports:
    plain: int
    tls: int


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> TlsFolder:
    return make_tls_folder(tmp_path_factory.mktemp("tls"))


@asynccontextmanager
async def serving(folder: TlsFolder) -> AsyncIterator[Ports]:
    state = ServiceState(Config(), state=DaemonState.SERVING, served=served_model(FakeEngine()))
    service = await build_service(state, RequestJournal(None), None, lambda _outcome: None, Events())
    tls = ServerTls(CertificateFiles(folder.path / "server.crt", folder.path / "server.key", None))
    plain = service.server.add_insecure_port("127.0.0.1:0")
    secure = service.server.add_secure_port("127.0.0.1:0", tls.credentials())
    await service.server.start()
    try:
        yield Ports(plain, secure)
    finally:
        await service.server.stop(0)


def run(folder: TlsFolder, body: Callable[[Ports], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with asyncio.timeout(WAIT_S), serving(folder) as ports:
            return await body(ports)

    return asyncio.run(main())


async def status(port: int, metadata: tuple[tuple[str, str], ...] = ()) -> grpc.StatusCode:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
        call: Any = channel.unary_unary(f"/{STATUS}/GetStatus")
        try:
            await call(b"", metadata=metadata, timeout=WAIT_S)
        except grpc.aio.AioRpcError as error:
            return error.code()
        return grpc.StatusCode.OK


async def read_to_end(port: int, sent: bytes, context: ssl.SSLContext | None = None) -> None:
    """Returns when the server closes the connection."""
    name = "localhost" if context else None
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
    try:
        writer.write(sent)
        while await reader.read(4096):
            pass
    except (ConnectionError, ssl.SSLError):
        pass
    finally:
        writer.transport.abort()


@pytest.mark.parametrize(("n_chars", "code"), [(7000, grpc.StatusCode.OK), (9000, grpc.StatusCode.RESOURCE_EXHAUSTED)])
def test_a_giant_header_is_refused_and_a_long_one_is_not(
    folder: TlsFolder, n_chars: int, code: grpc.StatusCode
) -> None:
    async def body(ports: Ports) -> grpc.StatusCode:
        return await status(ports.plain, (("x-long", "v" * n_chars),))

    assert run(folder, body) is code


@pytest.mark.parametrize("sent", [b"", CLIENT_HELLO_BEGIN])
def test_a_tls_handshake_that_stops_halfway_is_closed(
    folder: TlsFolder, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(limits, "_HANDSHAKE_MS", 200)
    run(folder, lambda ports: read_to_end(ports.tls, sent))


@pytest.mark.parametrize("sent", [b"", PREFACE[:24]])
def test_a_plain_connection_that_never_speaks_http2_is_closed(
    folder: TlsFolder, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(limits, "_HANDSHAKE_MS", 200)
    run(folder, lambda ports: read_to_end(ports.plain, sent))


def test_an_idle_connection_is_closed_with_tls_and_without(folder: TlsFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_IDLE_MS", 200)
    context = ssl.create_default_context(cafile=str(folder.path / "ca.crt"))
    context.set_alpn_protocols(["h2"])

    async def body(ports: Ports) -> None:
        await read_to_end(ports.plain, PREFACE)
        await read_to_end(ports.tls, PREFACE, context)

    run(folder, body)


def test_a_flood_of_connections_to_one_address_leaves_the_other_free_and_ends_with_it(
    folder: TlsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "_MAX_CONNECTIONS", 8)

    async def body(ports: Ports) -> None:
        opened = [await asyncio.open_connection("127.0.0.1", ports.tls) for _ in range(12)]
        closings = [asyncio.ensure_future(reader.read(1)) for reader, _ in opened]
        n_closed = 0
        while n_closed < 4:  # the server closes what is above the limit
            done, _ = await asyncio.wait(closings, return_when=asyncio.FIRST_COMPLETED)
            n_closed += len(done)
            closings = [each for each in closings if each not in done]
        assert len(closings) == 8
        assert await status(ports.plain) is grpc.StatusCode.OK
        for each in closings:
            each.cancel()
        for _, writer in opened:
            writer.transport.abort()
        credentials = folder.credentials()
        options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.secure_channel(f"127.0.0.1:{ports.tls}", credentials, options) as channel:
            call: Any = channel.unary_unary(f"/{STATUS}/GetStatus")
            await call(b"", timeout=WAIT_S, wait_for_ready=True)

    run(folder, body)
