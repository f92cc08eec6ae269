"""grpc.health.v1: the answer to "may I send work", per service and for the daemon as a whole.

Invariant: SERVING only while the model is verified and the engine is alive. Checks are answered by the event loop and
never wait behind compute; no watcher, whether it reads or not, holds up a change or another watcher.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import health, health_pb2

from sipd.server.methods import service_handler

if TYPE_CHECKING:
    from sipd.server.methods import Context

NAME: str = health.SERVICE_NAME
_STATES = health_pb2.HealthCheckResponse


class Health:
    """The health of all services, which change together; owned by the event loop's thread."""

    def __init__(self, services: Sequence[str]) -> None:
        self._services = frozenset(("", *services))
        self._is_serving = False
        self._is_shut_down = False
        self._change = asyncio.Event()  # set, and replaced, at the next change

    async def add_to(self, server: grpc.aio.Server) -> None:
        """Adds Check and Watch to `server`; everything is NOT_SERVING at first. List is left UNIMPLEMENTED."""
        parse, encode = health_pb2.HealthCheckRequest.FromString, _STATES.SerializeToString
        methods = {
            "Check": grpc.unary_unary_rpc_method_handler(self._check, parse, encode),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch, parse, encode),
        }
        server.add_generic_rpc_handlers([service_handler(NAME, methods)])

    async def set_serving(self, *, is_serving: bool) -> None:
        """Tells all watchers when the state changes."""
        if is_serving is self._is_serving or self._is_shut_down:
            return
        self._is_serving = is_serving
        change, self._change = self._change, asyncio.Event()
        change.set()

    async def shut_down(self) -> None:
        """NOT_SERVING for good: later changes are ignored."""
        await self.set_serving(is_serving=False)
        self._is_shut_down = True

    def _state(self, service: str) -> int | None:
        """Returns the state of `service`; None when there is none of that name."""
        if service not in self._services:
            return None
        return int(_STATES.SERVING if self._is_serving else _STATES.NOT_SERVING)

    async def _check(self, message: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        state = self._state(message.service)
        if state is None:  # a status of the protocol itself: health.proto, "Check"
            await context.abort(grpc.StatusCode.NOT_FOUND, f"service {message.service!r:.80} is not served")
        return _STATES(status=state)

    async def _watch(
        self, message: health_pb2.HealthCheckRequest, _context: Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        told = None
        while True:
            change = self._change  # first: the state may change while a response is sent
            state = self._state(message.service)
            state = int(_STATES.SERVICE_UNKNOWN) if state is None else state
            if state != told:
                told = state
                yield _STATES(status=state)
            await change.wait()
