"""Bounds the memory of messages that are being received: one call at a time may send its own.

A message takes its whole size before anything can look at it. Until gRPC is told to read it, flow control holds back
all but 64 KiB, so a call that waits here costs next to nothing. A slow sender makes room for the next call after a
moment, and is ended when its message does not come.

Invariant: at most _MAX_CALLS calls of a kind are open, and at most _N_AT_ONCE + _MAX_LATE of them are sending.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

from sipd.errors import DeadlineExceeded, InvalidRequest, Overloaded, SipdError
from sipd.server.failure import describe

if TYPE_CHECKING:
    from sipd.server.methods import Context, Handler

_N_AT_ONCE = 1  # 5 MB of prompt take 12 MB for a moment: slices, then their copy in one piece
_PATIENCE_S = 1.0  # a client that opens a call and sends nothing holds its place no longer
_MAX_LATE = 4  # slow senders that may go on beside the others
_LATE_S = 20.0  # 5 MB at 250 kB/s, a bad Wi-Fi
_MAX_CALLS = 256  # 22 KiB each and a header of up to 8 KiB: 8 MB, where 64 connections could open 4,096
_MAX_BESIDE_BYTES = 4096  # of a health or reflection message: names of services and files
_PREFIX = "/sipd.v1."
_RETRY_AFTER_S = 1.0


class ReceiveGate(grpc.aio.ServerInterceptor):  # type: ignore[misc, unused-ignore]
    """Owned by the event loop's thread; health and reflection have places of their own."""

    def __init__(self) -> None:
        self._door = _Door(None)
        self._door_beside = _Door(_MAX_BESIDE_BYTES)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Returns a handler that receives the message when there is a place for it, then runs the method's own."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        door = self._door if handler_call_details.method.startswith(_PREFIX) else self._door_beside
        # Streams both ways: the only kind of handler that runs before any message is received.
        return grpc.stream_stream_rpc_method_handler(
            _GatedMethod(handler, door).handle, None, handler.response_serializer
        )


class _Door:
    """The places of one kind of call."""

    def __init__(self, max_bytes: int | None) -> None:
        self._max_bytes = max_bytes
        self._n_calls = 0
        self._n_late = 0
        self._places = asyncio.Semaphore(_N_AT_ONCE)

    @contextmanager
    def call(self) -> Iterator[None]:
        """Counts a call while it is open; raises Overloaded for one too many."""
        if self._n_calls >= _MAX_CALLS:
            raise Overloaded(f"{self._n_calls} calls are open already, wanted at most {_MAX_CALLS}", _RETRY_AFTER_S)
        self._n_calls += 1
        try:
            yield
        finally:
            self._n_calls -= 1

    async def receive(self, context: Context) -> bytes:
        """Returns a call's first message; raises DeadlineExceeded, Overloaded or InvalidRequest."""
        async with self._places:
            receiving = asyncio.ensure_future(_first(context))
            try:
                done, _ = await asyncio.wait({receiving}, timeout=_PATIENCE_S)
            except asyncio.CancelledError:
                receiving.cancel()
                raise
        return receiving.result() if done else await self._receive_late(receiving)

    async def _receive_late(self, receiving: asyncio.Future[bytes]) -> bytes:
        if self._n_late >= _MAX_LATE:
            receiving.cancel()
            raise Overloaded(f"the message did not come within {_PATIENCE_S:g} s, as others' did not", _RETRY_AFTER_S)
        self._n_late += 1
        try:
            async with asyncio.timeout(_LATE_S):
                return await receiving
        except TimeoutError:
            raise DeadlineExceeded(f"the message did not come within {_PATIENCE_S + _LATE_S:g} s") from None
        finally:
            self._n_late -= 1

    def checked(self, encoded: bytes) -> bytes:
        """Returns `encoded`; raises InvalidRequest when it is too long."""
        if self._max_bytes is not None and len(encoded) > self._max_bytes:
            raise InvalidRequest("request", f"message has {len(encoded)} bytes, wanted at most {self._max_bytes}")
        return encoded


async def _first(context: Context) -> bytes:
    """Returns the first message; grpc's own iterator would keep it alive as long as the call's last traceback."""
    encoded: Any = await context.read()
    if encoded is grpc.aio.EOF:
        raise InvalidRequest("request", "the call ended without a message, wanted one")
    return bytes(encoded)


class _GatedMethod:
    """A method behind a door; no local variable holds a message, which lives as long as the method keeps it."""

    def __init__(self, handler: Any, door: _Door) -> None:  # noqa: ANN401 - grpc's stubs describe blocking handlers
        self._handler = handler
        self._door = door
        self._deserialize = handler.request_deserializer or bytes

    async def handle(self, _messages: object, context: Context) -> None:
        """Receives the message, runs the method and sends its responses."""
        try:
            with self._door.call():
                await self._run(context)
        except SipdError as error:
            failure = describe(error)
        else:
            return
        await context.abort(failure.code, failure.message, failure.trailing_metadata)

    async def _run(self, context: Context) -> None:
        method, door = self._handler, self._door
        if method.unary_unary is not None:
            await context.write(await method.unary_unary(self._parse(await door.receive(context)), context))
            return
        if method.unary_stream is not None:
            responses = method.unary_stream(self._parse(await door.receive(context)), context)
        else:
            first = self._parse(await door.receive(context))
            responses = method.stream_stream(self._all_of(first, context), context)
        if isawaitable(responses):  # health's Watch writes by itself
            await responses
            return
        async with aclosing(responses):
            async for response in responses:
                await context.write(response)

    def _parse(self, encoded: bytes) -> Any:  # noqa: ANN401 - a message of any type
        try:
            return self._deserialize(self._door.checked(encoded))
        except DecodeError:
            raise InvalidRequest("request", f"{len(encoded)} bytes are no valid message of this method") from None

    async def _all_of(self, first: Any, context: Context) -> AsyncIterator[Any]:  # noqa: ANN401
        """Yields a stream's messages; reflection's later ones are answers to ours."""
        yield first
        while (encoded := await context.read()) is not grpc.aio.EOF:
            yield self._parse(encoded)
