# ruff: noqa: ANN401 - grpc's channels and calls are untyped

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

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


async def code_of(call: Any) -> grpc.StatusCode:
    code: grpc.StatusCode = await call.code()
    return code


def test_a_message_that_never_comes_ends_its_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive_gate, "_PATIENCE_S", 0.05)
    monkeypatch.setattr(receive_gate, "_LATE_S", 0.3)

    async def main() -> list[grpc.StatusCode]:
        async with asyncio.timeout(WAIT_S), running(tmp_path) as (_server, channel):
            calls = [await half_open(channel) for _ in range(5)]
            return [await code_of(call) for call in calls]

    codes = asyncio.run(main())
    assert codes[:4] == [grpc.StatusCode.DEADLINE_EXCEEDED] * 4
    assert codes[4] is grpc.StatusCode.RESOURCE_EXHAUSTED  # a fifth slow sender


def test_a_slow_message_within_its_time_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive_gate, "_PATIENCE_S", 0.01)

    async def main() -> bytes:
        async with asyncio.timeout(WAIT_S), running(tmp_path) as (_server, channel):
            slow = await half_open(channel)
            quick: Any = channel.unary_unary(f"/{STATUS}/GetStatus")
            await quick(b"")  # comes in only once the slow one is late
            await slow.write(b"")
            await slow.done_writing()
            return bytes(await slow)

    assert status_pb2.GetStatusResponse.FromString(asyncio.run(main())).model == "tiny"


def test_a_call_without_a_message_is_refused(tmp_path: Path) -> None:
    async def main() -> grpc.StatusCode:
        async with asyncio.timeout(WAIT_S), running(tmp_path) as (_server, channel):
            call = await half_open(channel)
            await call.done_writing()
            return await code_of(call)

    assert asyncio.run(main()) is grpc.StatusCode.INVALID_ARGUMENT


def test_one_open_call_too_many_is_told_to_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive_gate, "_MAX_CALLS", 3)

    async def main() -> None:
        async with asyncio.timeout(WAIT_S), running(tmp_path) as (_server, channel):
            calls = [await half_open(channel) for _ in range(3)]
            method: Any = channel.unary_unary(f"/{STATUS}/GetStatus")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await method(b"")
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "3 calls are open" in str(caught.value.details())
            health: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert await health(b"")
            for call in calls:
                call.cancel()
                await code_of(call)
            await method(b"", wait_for_ready=True)

    asyncio.run(main())


def test_a_watcher_of_health_hears_the_first_state_and_each_change(tmp_path: Path) -> None:
    async def main() -> list[int]:
        async with asyncio.timeout(WAIT_S), running(tmp_path) as (server, channel):
            method: Any = channel.unary_stream(
                "/grpc.health.v1.Health/Watch", response_deserializer=health_pb2.HealthCheckResponse.FromString
            )
            call = method(b"")
            first = await call.read()
            await server.service.health.set_serving(is_serving=True)
            second = await call.read()
            call.cancel()
            return [int(first.status), int(second.status)]

    states = health_pb2.HealthCheckResponse
    assert asyncio.run(main()) == [states.NOT_SERVING, states.SERVING]


LONG = health_pb2.HealthCheckRequest(service="x" * 5000).SerializeToString()


@pytest.mark.parametrize("message", [LONG, b"\xff\xff"])
def test_a_health_message_that_is_long_or_garbage_is_refused(tmp_path: Path, message: bytes) -> None:
    async def main() -> grpc.StatusCode:
        async with asyncio.timeout(WAIT_S), running(tmp_path) as (_server, channel):
            method: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
            return await code_of(method(message))

    assert asyncio.run(main()) is grpc.StatusCode.INVALID_ARGUMENT


def test_a_refused_message_is_let_go_at_once(tmp_path: Path) -> None:
    n_bytes = 1_000_000

    async def refuse(message: bytes, context: Any) -> None:
        assert len(message) == n_bytes
        del message
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no")

    async def main() -> int:
        server = grpc.aio.server(interceptors=(receive_gate.ReceiveGate(),))
        handler: Any = grpc.unary_unary_rpc_method_handler(refuse)
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("sipd.v1.T", {"M": handler})])
        server.add_insecure_port(f"unix:{tmp_path}/s")
        await server.start()
        async with asyncio.timeout(WAIT_S), grpc.aio.insecure_channel(f"unix:{tmp_path}/s") as channel:
            method: Any = channel.unary_unary("/sipd.v1.T/M")
            body = bytes(n_bytes)
            gc.disable()  # a cycle that waits for the collector is memory that is held
            tracemalloc.start()
            try:
                for _ in range(8):
                    assert await code_of(method(body)) is grpc.StatusCode.INVALID_ARGUMENT
                return tracemalloc.get_traced_memory()[0]
            finally:
                tracemalloc.stop()
                gc.enable()
                await server.stop(0)

    assert asyncio.run(main()) < 2 * n_bytes
