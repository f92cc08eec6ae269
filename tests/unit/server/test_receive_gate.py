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

from sipd.config import Config
from sipd.errors import InvalidRequest
from sipd.server import first_message, open_calls, receive_gate
from sipd.server.events import Events
from sipd.server.refusals import Refusals
from sipd.server.service import GENERATION, STATUS
from sipd.v1 import generation_pb2 as pb
from sipd.v1 import status_pb2
from tests.unit.server.fakes import WAIT_S, FakeEngine, running
from tests.unit.server.http2 import END_STREAM, HEADERS, raw_client


async def half_open(channel: grpc.aio.Channel, method: str = "GetStatus") -> Any:
    """Opens a call whose message never comes."""
    service = GENERATION if method == "Generate" else STATUS
    call: Any = channel.stream_unary(f"/{service}/{method}")()
    await call.wait_for_connection()
    return call


def test_sixteen_calls_that_send_nothing_do_not_hold_up_a_question_for_a_second_each(tmp_path: Path) -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(3 * WAIT_S), running(tmp_path) as (_server, channel):
            calls = [await half_open(channel, method) for method in ("Generate", "GetStatus") for _ in range(16)]
            began = loop.time()
            assert (await get_status(channel)).model == "tiny"
            took_s = loop.time() - began
            for call in calls:
                call.cancel()
            return took_s

    assert asyncio.run(main()) < 5


def test_a_prompt_that_never_comes_does_not_hold_up_a_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_message, "PATIENCE_S", 10 * WAIT_S)
    monkeypatch.setattr(first_message, "LEAST_PATIENCE_S", 10 * WAIT_S)

    async def main() -> None:
        async with asyncio.timeout(WAIT_S), running(tmp_path) as (_server, channel):
            calls = [await half_open(channel, "Generate") for _ in range(6)]
            await get_status(channel)
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


async def get_status(channel: grpc.aio.Channel) -> status_pb2.GetStatusResponse:
    method: Any = channel.unary_unary(f"/{STATUS}/GetStatus")
    return status_pb2.GetStatusResponse.FromString(await method(b""))


async def code_of(call: Any) -> grpc.StatusCode:
    code: grpc.StatusCode = await call.code()
    return code


def test_a_message_that_never_comes_ends_its_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_message, "PATIENCE_S", 0.05)
    monkeypatch.setattr(first_message, "LATE_S", 0.3)

    async def main() -> list[grpc.StatusCode]:
        async with asyncio.timeout(WAIT_S), running(tmp_path) as (_server, channel):
            calls = [await half_open(channel, "Generate") for _ in range(5)]
            return [await code_of(call) for call in calls]

    codes = asyncio.run(main())
    assert codes[:4] == [grpc.StatusCode.DEADLINE_EXCEEDED] * 4
    assert codes[4] is grpc.StatusCode.RESOURCE_EXHAUSTED  # a fifth slow sender


def test_a_slow_message_within_its_time_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_message, "PATIENCE_S", 0.01)

    async def main() -> bytes:
        async with asyncio.timeout(WAIT_S), running(tmp_path) as (_server, channel):
            slow, slower = await half_open(channel), await half_open(channel)
            await get_status(channel)  # comes in only once a slow one is late
            await slow.write(b"")
            await slow.done_writing()
            slower.cancel()
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
    monkeypatch.setattr(open_calls, "MAX_CALLS", 4)  # of which the programs of the machine have three

    async def main() -> None:
        async with asyncio.timeout(WAIT_S), running(tmp_path) as (server, channel):
            calls = [await half_open(channel) for _ in range(3)]
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await get_status(channel)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "3 calls open" in str(caught.value.details())
            (told,) = server.told
            assert (told["SIPD_EVENT"], told["SIPD_ERROR"], told["SIPD_CLIENT"]) == (
                *("call_refused", "QUEUE_FULL"),
                "local:unix",
            )
            health: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert await health(b"")
            for call in calls:
                call.cancel()
                await code_of(call)
            await served(channel)

    asyncio.run(main())


def test_a_client_on_the_network_cannot_take_the_places_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_calls, "MAX_CALLS", 16)
    config = Config(max_requests_per_client=4)

    async def main() -> None:
        async with (
            asyncio.timeout(WAIT_S),
            running(tmp_path, target="127.0.0.1:0", config=config) as (server, channel),
            grpc.aio.insecure_channel(server.target, [("grpc.use_local_subchannel_pool", 1)]) as other,
        ):
            calls = [await half_open(channel) for _ in range(4)]
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await get_status(channel)
            assert "has 4 calls open, one client may have 4" in str(caught.value.details())
            await get_status(other)
            for call in calls:
                call.cancel()

    asyncio.run(main())


async def served(channel: grpc.aio.Channel) -> None:
    """Returns when there is a place for a question."""
    while True:
        try:
            await get_status(channel)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
        else:
            return


def test_calls_whose_responses_nobody_reads_give_their_places_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_calls, "MAX_CALLS", 4)
    monkeypatch.setattr(receive_gate, "UNREAD_S", 0.3)

    async def main() -> None:
        async with (
            asyncio.timeout(WAIT_S),
            running(tmp_path) as (server, channel),
            raw_client(server.target) as unread,
        ):
            for _ in range(3):
                unread.call(f"/{STATUS}/GetStatus")
            for _ in range(3):
                await unread.until(HEADERS)  # those before the response, which no window holds back
            with pytest.raises(grpc.aio.AioRpcError, match="3 calls open"):
                await get_status(channel)
            await served(channel)

    asyncio.run(main())


def test_a_reply_that_nobody_reads_ends_its_request_and_says_so_if_it_is_read_after_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receive_gate, "UNREAD_S", 0.1)
    message = pb.GenerateRequest(prompt="hello").SerializeToString()

    async def main() -> bytes:
        engine = FakeEngine()
        engine.gate.clear()
        async with (
            asyncio.timeout(WAIT_S),
            running(tmp_path, engine) as (server, _channel),
            raw_client(server.target) as unread,
        ):
            unread.call(f"/{GENERATION}/Generate", message)
            assert await asyncio.to_thread(engine.was_cancelled.wait, WAIT_S)
            unread.open_window()
            trailers = await unread.until(HEADERS, END_STREAM)
            assert [each["SIPD_ERROR"] for each in server.told] == ["CANCELLED"]
            return trailers.payload

    assert b"took nothing of a response" in asyncio.run(main())


LONG = health_pb2.HealthCheckRequest(service="x" * 5000).SerializeToString()


@pytest.mark.parametrize("message", [LONG, b"\xff\xff"])
def test_a_health_message_that_is_long_or_garbage_is_refused(tmp_path: Path, message: bytes) -> None:
    async def main() -> grpc.StatusCode:
        async with asyncio.timeout(WAIT_S), running(tmp_path) as (_server, channel):
            method: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
            return await code_of(method(message))

    assert asyncio.run(main()) is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("message", [b"\xff\xff", b"\x0a\x02\xff\xfe", bytes(2 * 1024**2)])
def test_a_message_that_is_no_request_is_told_to_the_journal_with_reason_and_client(
    tmp_path: Path, message: bytes
) -> None:
    async def main() -> None:
        async with asyncio.timeout(WAIT_S), running(tmp_path) as (server, channel):
            method: Any = channel.unary_stream(f"/{GENERATION}/Generate")
            assert await code_of(method(message)) is grpc.StatusCode.INVALID_ARGUMENT
            (told,) = server.told
            assert (told["SIPD_EVENT"], told["SIPD_ERROR"]) == ("call_refused", "INVALID_FIELD")
            assert (told["SIPD_CLIENT"], told["SIPD_REFUSED"]) == ("local:unix", "1")
            assert server.records == []

    asyncio.run(main())


@pytest.mark.parametrize("parse", [None, lambda _message: InvalidRequest("request", "no")])
def test_a_refused_message_is_let_go_at_once(tmp_path: Path, parse: Any) -> None:
    n_bytes = 1_000_000

    async def refuse(message: bytes, context: Any) -> None:
        assert len(message) == n_bytes
        del message
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no")

    async def main() -> int:
        refusals = Refusals(Events(), asyncio.get_running_loop().call_later)
        server = grpc.aio.server(interceptors=(receive_gate.ReceiveGate(refusals),))
        handler: Any = grpc.unary_unary_rpc_method_handler(refuse, parse)
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
