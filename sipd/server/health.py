"""grpc.health.v1: the answer to "may I send work", per service and for the daemon as a whole.

Invariant: SERVING only while the model is verified and the engine is alive. Checks are answered by the event loop and
never wait behind compute.
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

NAME: str = health.SERVICE_NAME


class Health:
    """The health of all services, which change together; owned by the event loop's thread."""

    def __init__(self, services: Sequence[str]) -> None:
        self._servicer = health.aio.HealthServicer()
        self._services = ("", *services)
        self._is_serving: bool | None = None

    async def add_to(self, server: grpc.aio.Server) -> None:
        """Adds Check and Watch to `server`; everything is NOT_SERVING at first."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)
        await self.set_serving(is_serving=False)

    async def set_serving(self, *, is_serving: bool) -> None:
        """Tells all watchers when the state changes."""
        if is_serving is self._is_serving:
            return
        self._is_serving = is_serving
        statuses = health_pb2.HealthCheckResponse
        for service in self._services:
            await self._servicer.set(service, statuses.SERVING if is_serving else statuses.NOT_SERVING)

    async def shut_down(self) -> None:
        """NOT_SERVING for good: later changes are ignored."""
        self._is_serving = False
        await self._servicer.enter_graceful_shutdown()
