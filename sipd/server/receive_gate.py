"""Bounds the memory of messages that are being received: one call at a time may send its own.

A message takes its whole size before anything can look at it. Until gRPC is told to read it, flow control holds back
all but 64 KiB, so a call that waits here costs next to nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:
    from sipd.server.methods import Handler

_N_AT_ONCE = 1  # 5 MB of prompt take 12 MB for a moment: slices, then their copy in one piece
_PATIENCE_S = 1.0  # a client that opens a call and sends nothing holds its place no longer
_MAX_BESIDE_BYTES = 4096  # of a health or reflection message: names of services and files
_PREFIX = "/sipd.v1."


class ReceiveGate(grpc.aio.ServerInterceptor):  # type: ignore[misc, unused-ignore]
    """Owned by the event loop's thread; health and reflection have a place of their own."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(_N_AT_ONCE)
        self._places_beside = asyncio.Semaphore(_N_AT_ONCE)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Returns the method's handler once there is a place for its message."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        places = self._places if handler_call_details.method.startswith(_PREFIX) else self._places_beside
        await places.acquire()
        place = _Place(places, None if places is self._places else _MAX_BESIDE_BYTES)
        return _with_deserializer(handler, place.leave_after(handler.request_deserializer))


class _Place:
    """One permission to send a message; given back when the message is there, or when patience ends."""

    def __init__(self, places: asyncio.Semaphore, max_bytes: int | None) -> None:
        self._places = places
        self._max_bytes = max_bytes
        self._timer = asyncio.get_running_loop().call_later(_PATIENCE_S, self._leave)
        self._is_held = True

    def leave_after(self, deserializer: Callable[[bytes], Any] | None) -> Callable[[bytes], Any]:
        """Returns a deserializer that gives the place back first."""

        def deserialize(encoded: bytes) -> object:
            self._leave()
            if self._max_bytes is not None and len(encoded) > self._max_bytes:
                raise ValueError(f"a message of {len(encoded)} bytes, wanted at most {self._max_bytes}")
            return encoded if deserializer is None else deserializer(encoded)

        return deserialize

    def _leave(self) -> None:
        if self._is_held:
            self._is_held = False
            self._timer.cancel()
            self._places.release()


def _with_deserializer(handler: Handler, deserializer: Callable[[bytes], Any]) -> Handler:
    """Returns `handler` with another deserializer."""
    if handler.request_streaming:  # reflection: its first message waits for a place, the later ones are answers to ours
        assert handler.stream_stream is not None
        return grpc.stream_stream_rpc_method_handler(handler.stream_stream, deserializer, handler.response_serializer)
    if handler.response_streaming:
        assert handler.unary_stream is not None
        return grpc.unary_stream_rpc_method_handler(handler.unary_stream, deserializer, handler.response_serializer)
    assert handler.unary_unary is not None
    return grpc.unary_unary_rpc_method_handler(handler.unary_unary, deserializer, handler.response_serializer)
