# ruff: noqa: ANN401 - grpc's channels and calls are untyped

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc

from sipd.server import receive_gate
from sipd.server.service import STATUS
from sipd.v1 import status_pb2
from tests.unit.server.fakes import WAIT_S, running


async def half_open(channel: grpc.aio.Channel) -> Any:
    """Opens a call whose message never comes."""
    method: Any = channel.stream_unary(f"/{STATUS}/GetStatus")
    call = method()
    await call.wait_for_connection()
    return call


def test_calls_that_send_nothing_hold_up_others_only_for_a_while(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(receive_gate, "_PATIENCE_S", 0.1)

    async def main() -> None:
        async with asyncio.timeout(WAIT_S), running(tmp_path) as (_server, channel):
            calls = [await half_open(channel) for _ in range(6)]
            method: Any = channel.unary_unary(
                f"/{STATUS}/GetStatus",
                status_pb2.GetStatusRequest.SerializeToString,
                status_pb2.GetStatusResponse.FromString,
            )
            assert (await method(status_pb2.GetStatusRequest())).model == "tiny"
            for call in calls:
                call.cancel()

    asyncio.run(main())


def test_a_call_that_sends_nothing_does_not_hold_up_health(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(WAIT_S), running(tmp_path) as (_server, channel):
            calls = [await half_open(channel) for _ in range(6)]
            method: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert await method(b"")
            for call in calls:
                call.cancel()

    asyncio.run(main())
