# ruff: noqa: ANN401 - grpc's channels and calls are untyped

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from sipd.config import Config
from sipd.errors import ConfigError
from sipd.server.auth import TokenFile, TokenInterceptor
from sipd.server.client_identity import identify_client
from sipd.server.events import Events
from sipd.server.journal import RequestJournal
from sipd.server.refusals import Refusals
from sipd.server.service import build_service
from sipd.server.service_state import DaemonState, ServiceState
from sipd.server.tokens import token_line
from sipd.v1 import status_pb2
from tests.unit.server.fakes import WAIT_S, FakeEngine, served_model

TOKEN = "a-token-of-24-characters"


def token_file(folder: Path, text: str) -> Path:
    path = folder / "tokens"
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_each_line_is_a_token_with_or_without_a_name(tmp_path: Path) -> None:
    tokens = TokenFile(token_file(tmp_path, f"# comment\n\nkitchen:{TOKEN}\n{TOKEN}2\n"))
    assert tokens.accepts(f"Bearer {TOKEN}") == "kitchen"
    assert tokens.accepts(f"bearer {TOKEN}2") == "line 4"


def test_a_hashed_line_lets_its_token_in_and_not_its_digest(tmp_path: Path) -> None:
    line = token_line("kitchen", TOKEN)
    tokens = TokenFile(token_file(tmp_path, line))
    assert tokens.accepts(f"Bearer {TOKEN}") == "kitchen"
    assert tokens.accepts(f"Bearer {line.rpartition(':')[2]}") is None
    assert tokens.accepts(f"Bearer {line}") is None


def test_plain_tokens_are_warned_about_by_name_and_hashed_ones_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "sipd.auth"):
        TokenFile(token_file(tmp_path, f"kitchen:{TOKEN}\n{token_line('phone', TOKEN)}"))
    assert "plain text: kitchen;" in caplog.text
    assert TOKEN not in caplog.text
    assert "phone" not in caplog.text


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer x", f"Basic {TOKEN}", TOKEN, f"Bearer kitchen:{TOKEN}"])
def test_anything_else_is_not_accepted(tmp_path: Path, given: str) -> None:
    assert TokenFile(token_file(tmp_path, f"kitchen:{TOKEN}")).accepts(given) is None


@pytest.mark.parametrize(
    ("text", "problem"), [("", "holds no token"), ("# only\n", "holds no token"), ("short", "line 1: token has 5")]
)
def test_a_token_file_that_protects_nothing_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        TokenFile(token_file(tmp_path, text))


def test_a_missing_token_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"token_file: .*absent"):
        TokenFile(tmp_path / "absent")


def test_a_token_file_open_to_all_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = token_file(tmp_path, TOKEN)
    path.chmod(0o644)
    with caplog.at_level(logging.WARNING, "sipd.auth"):
        TokenFile(path)
    assert "wanted mode 0600" in caplog.text


def test_a_reload_replaces_tokens_and_a_bad_one_keeps_them(tmp_path: Path) -> None:
    tokens = TokenFile(token_file(tmp_path, TOKEN))
    token_file(tmp_path, TOKEN[::-1])
    tokens.reload()
    assert tokens.accepts(f"Bearer {TOKEN}") is None
    token_file(tmp_path, "")
    with pytest.raises(ConfigError):
        tokens.reload()
    assert tokens.accepts(f"Bearer {TOKEN[::-1]}") is not None


def call_status(tmp_path: Path, metadata: tuple[tuple[str, str], ...], method: str = "status") -> Any:
    """Calls GetStatus or Check on a server that wants TOKEN; returns the answer or raises."""

    async def main() -> Any:
        state = ServiceState(Config(), state=DaemonState.SERVING, served=served_model(FakeEngine()))
        tokens = TokenFile(token_file(tmp_path, TOKEN))
        service = await build_service(state, RequestJournal(None), tokens, lambda _outcome: None, Events())
        service.server.add_insecure_port(f"unix:{tmp_path}/s")
        await service.server.start()
        try:
            async with grpc.aio.insecure_channel(f"unix:{tmp_path}/s") as channel:
                names: dict[str, tuple[str, Any, Any]] = {
                    "status": (
                        "/sipd.v1.StatusService/GetStatus",
                        status_pb2.GetStatusRequest,
                        status_pb2.GetStatusResponse,
                    ),
                    "health": (
                        "/grpc.health.v1.Health/Check",
                        health_pb2.HealthCheckRequest,
                        health_pb2.HealthCheckResponse,
                    ),
                }
                path, request, response = names[method]
                call: Any = channel.unary_unary(path, request.SerializeToString, response.FromString)
                return await call(request(), metadata=metadata, timeout=WAIT_S)
        finally:
            await service.server.stop(0)

    return asyncio.run(main())


def test_a_call_with_the_token_is_served(tmp_path: Path) -> None:
    assert call_status(tmp_path, (("authorization", f"Bearer {TOKEN}"),)).model == "tiny"


@pytest.mark.parametrize("metadata", [(), (("authorization", "Bearer wrong"),)])
def test_a_call_without_it_is_unauthenticated(tmp_path: Path, metadata: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        call_status(tmp_path, metadata)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "Bearer TOKEN" in str(caught.value.details())


def test_several_values_are_told_apart_from_none(tmp_path: Path) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        call_status(tmp_path, (("authorization", f"Bearer {TOKEN}"),) * 2)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert str(caught.value.details()).startswith("2 authorization values, wanted metadata ")


def test_health_needs_no_token(tmp_path: Path) -> None:
    assert call_status(tmp_path, (), "health").status == health_pb2.HealthCheckResponse.NOT_SERVING


def test_the_name_of_the_token_reaches_the_handler(tmp_path: Path) -> None:
    async def name(_message: bytes, context: Any) -> bytes:
        return identify_client(context).name.encode()

    async def main() -> bytes:
        tokens = TokenFile(token_file(tmp_path, token_line("kitchen", TOKEN)))
        server = grpc.aio.server(
            interceptors=(TokenInterceptor(tokens, Refusals(Events(), asyncio.get_running_loop().call_later)),)
        )
        method: Any = grpc.unary_unary_rpc_method_handler(name)
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("t.Test", {"Name": method})])
        server.add_insecure_port(f"unix:{tmp_path}/s")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"unix:{tmp_path}/s") as channel:
                call: Any = channel.unary_unary("/t.Test/Name")
                return bytes(await call(b"", metadata=(("authorization", f"Bearer {TOKEN}"),), timeout=WAIT_S))
        finally:
            await server.stop(0)

    assert asyncio.run(main()) == b"token:kitchen"
