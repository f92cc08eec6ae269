"""Calls over a real socket to a daemon with a fake engine, and what comes back."""

# ruff: noqa: ANN401 - grpc's channels and calls are untyped

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from sipd.v1 import generation_pb2 as pb
from tests.unit.server.fakes import WAIT_S, FakeEngine, Running, running

Body = Callable[[Running, grpc.aio.Channel], Awaitable[Any]]


def run(folder: Path, body: Body, engine: FakeEngine | None = None, **options: Any) -> Any:
    async def main() -> Any:
        async with asyncio.timeout(4 * WAIT_S), running(folder, engine, **options) as (server, channel):
            return await body(server, channel)

    return asyncio.run(main())


def events(folder: Path, request: pb.GenerateRequest, engine: FakeEngine | None = None, **options: Any) -> list[Any]:
    async def body(server: Running, channel: grpc.aio.Channel) -> list[Any]:
        return [event async for event in server.generate(channel, request)]

    found: list[Any] = run(folder, body, engine, **options)
    return found


def failure(
    folder: Path, request: pb.GenerateRequest, engine: FakeEngine | None = None, **options: Any
) -> tuple[grpc.StatusCode, str, error_details_pb2.ErrorInfo, list[Any]]:
    """Returns code, message, ErrorInfo and the other details of a call that must fail."""

    async def body(server: Running, channel: grpc.aio.Channel) -> grpc.aio.AioRpcError:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in server.generate(channel, request):
                pass
        return caught.value

    error = run(folder, body, engine, **options)
    encoded = dict(list(error.trailing_metadata()))["grpc-status-details-bin"]
    details = status_pb2.Status.FromString(encoded).details
    info = error_details_pb2.ErrorInfo()
    assert details[0].Unpack(info)
    assert info.domain == "sipd"
    return error.code(), error.details(), info, list(details[1:])


def text_of(found: list[Any]) -> str:
    return "".join(event.token.text for event in found)


def prompt(text: str = "hello", **changes: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(prompt=text, **changes)
