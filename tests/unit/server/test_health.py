"""Health over a real server: states, watchers, and one that reads nothing."""

# ruff: noqa: ANN401 - grpc's channels and calls are untyped

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from sipd.server.service import GENERATION
from tests.unit.server.fakes import WAIT_S, running
from tests.unit.server.http2 import HEADERS, raw_client

STATES = health_pb2.HealthCheckResponse


async def check(channel: grpc.aio.Channel, service: str = "") -> int:
    method: Any = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        health_pb2.HealthCheckRequest.SerializeToString,
        STATES.FromString,
    )
    return int((await method(health_pb2.HealthCheckRequest(service=service))).status)


def watch(channel: grpc.aio.Channel, service: str = "") -> Any:
    method: Any = channel.unary_stream(
        "/grpc.health.v1.Health/Watch", health_pb2.HealthCheckRequest.SerializeToString, STATES.FromString
    )
    return method(health_pb2.HealthCheckRequest(service=service))


@pytest.mark.parametrize("service", ["", GENERATION])
def test_the_daemon_and_each_service_have_a_state(tmp_path: Path, service: str) -> None:
    async def main() -> list[int]:
        async with asyncio.timeout(WAIT_S), running(tmp_path) as (server, channel):
            found = [await check(channel, service)]
            await server.service.health.set_serving(is_serving=True)
            found.append(await check(channel, service))
            await server.service.health.shut_down()
            await server.service.health.set_serving(is_serving=True)
            return [*found, await check(channel, service)]

    assert asyncio.run(main()) == [STATES.NOT_SERVING, STATES.SERVING, STATES.NOT_SERVING]


def test_a_service_that_is_not_there_is_not_found_and_its_watcher_waits_for_it(tmp_path: Path) -> None:
    async def main() -> tuple[grpc.StatusCode, int]:
        async with asyncio.timeout(WAIT_S), running(tmp_path) as (_server, channel):
            with pytest.raises(grpc.aio.AioRpcError, match="service 'nope' is not served") as caught:
                await check(channel, "nope")
            call = watch(channel, "nope")
            first = await call.read()
            call.cancel()
            return caught.value.code(), int(first.status)

    assert asyncio.run(main()) == (grpc.StatusCode.NOT_FOUND, STATES.SERVICE_UNKNOWN)


def test_each_of_several_watchers_hears_the_first_state_and_each_change(tmp_path: Path) -> None:
    async def main() -> list[list[int]]:
        async with asyncio.timeout(WAIT_S), running(tmp_path) as (server, channel):
            calls = [watch(channel), watch(channel, GENERATION)]
            heard = [[int((await call.read()).status)] for call in calls]
            for is_serving in (True, False):
                await server.service.health.set_serving(is_serving=is_serving)
                for call, states in zip(calls, heard, strict=True):
                    states.append(int((await call.read()).status))
            for call in calls:
                call.cancel()
            return heard

    assert asyncio.run(main()) == [[STATES.NOT_SERVING, STATES.SERVING, STATES.NOT_SERVING]] * 2


def test_a_watcher_that_reads_nothing_holds_up_neither_a_change_nor_another_watcher(tmp_path: Path) -> None:
    async def main() -> int:
        async with (
            asyncio.timeout(WAIT_S),
            running(tmp_path) as (server, channel),
            raw_client(server.target) as unread,
        ):
            unread.call("/grpc.health.v1.Health/Watch")
            await unread.until(HEADERS)
            other = watch(channel)
            await other.read()
            await server.service.health.set_serving(is_serving=True)
            state = int((await other.read()).status)
            await server.service.health.shut_down()
            other.cancel()
            return state

    assert asyncio.run(main()) == STATES.SERVING


def test_list_is_unimplemented_and_no_fault_of_the_daemon(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> grpc.StatusCode:
        async with asyncio.timeout(WAIT_S), running(tmp_path) as (_server, channel):
            method: Any = channel.unary_unary("/grpc.health.v1.Health/List")
            code: grpc.StatusCode = await method(b"").code()
            return code

    with caplog.at_level(logging.DEBUG, "grpc"):
        assert asyncio.run(main()) is grpc.StatusCode.UNIMPLEMENTED
    assert [record for record in caplog.records if record.exc_info] == []
