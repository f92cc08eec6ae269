"""Every call passes here: it gets a place, its message is received when there is room, and its responses are sent.

Invariant: what one client does to its calls (opens many, sends nothing, takes nothing) costs others no more than a
moment; a call that fails before its method runs, or is not read, is told to the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, aclosing
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError, Message

from sipd.errors import Cancelled, InvalidRequest, SipdError
from sipd.server.client_identity import ClientIdentity, identify_client
from sipd.server.failure import describe
from sipd.server.first_message import PROMPTS, SMALL, FirstMessages
from sipd.server.open_calls import OpenCalls
from sipd.server.refusals import Refusals
from sipd.server.unsent import Unsent

if TYPE_CHECKING:
    from sipd.server.methods import Context, Handler

UNREAD_S = 60.0  # in which a client takes nothing of a response; a pause of a reader that is there is shorter
_PREFIX = "/sipd.v1."
_SMALL_METHODS = frozenset({"GetStatus", "GetModel", "ListModels"})


class ReceiveGate(grpc.aio.ServerInterceptor):  # type: ignore[misc, unused-ignore]
    """Owned by the event loop's thread; small questions do not wait behind prompts, nor health behind either."""

    def __init__(self, refusals: Refusals, client_share: int = 0) -> None:
        self._refusals = refusals
        self._calls = OpenCalls(client_share)
        self._calls_beside = OpenCalls()  # of health and reflection
        self._prompts = FirstMessages(PROMPTS)
        self._questions = FirstMessages(SMALL)
        self._beside = FirstMessages(SMALL)
        self._unsent = Unsent()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Returns a handler that receives the message when there is a place for it, then runs the method's own."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        if not method.startswith(_PREFIX):
            calls, messages = self._calls_beside, self._beside
        else:
            is_small = method.rpartition("/")[2] in _SMALL_METHODS
            calls, messages = self._calls, self._questions if is_small else self._prompts
        gated = _GatedMethod(handler, calls, messages, self._unsent, self._refusals)
        # Streams both ways: the only kind of handler that runs before any message is received.
        return grpc.stream_stream_rpc_method_handler(gated.handle, None, handler.response_serializer)


class _UnreadError(Exception):
    """The client takes nothing; `sending` ends when it does, or when it is gone."""

    def __init__(self, sending: asyncio.Future[None]) -> None:
        super().__init__()
        self.sending = sending


class _GatedMethod:
    """A method behind the gate; no local variable holds a message, which lives as long as the method keeps it."""

    def __init__(
        self,
        handler: Any,  # noqa: ANN401 - grpc's stubs describe blocking handlers
        calls: OpenCalls,
        messages: FirstMessages,
        unsent: Unsent,
        refusals: Refusals,
    ) -> None:
        self._handler = handler
        self._calls = calls
        self._messages = messages
        self._unsent = unsent
        self._refusals = refusals
        self._deserialize = handler.request_deserializer or bytes

    async def handle(self, _messages: object, context: Context) -> None:
        """Receives the message, runs the method and sends its responses."""
        client = identify_client(context)
        try:
            await self._hold(context, client)
        except SipdError as error:
            failure = describe(error)
            self._refusals.note_call(client.name, error)
        else:
            return
        await context.abort(failure.code, failure.message, failure.trailing_metadata)

    async def _hold(self, context: Context, client: ClientIdentity) -> None:
        with self._calls.hold(client) as call, ExitStack() as answer:
            try:
                await self._run(context, client, answer)
            except _UnreadError as error:
                sending = error.sending
            else:
                return
            self._calls.set_unread(call)
            await sending  # a status would be held back as well: it is sent if the client reads after all
        raise Cancelled(f"the client took nothing of a response for {UNREAD_S:g} s")

    async def _run(self, context: Context, client: ClientIdentity, answer: ExitStack) -> None:
        """Runs the method; `answer` holds what counts as long as its one response is not taken."""
        method, messages = self._handler, self._messages
        if method.unary_unary is not None:
            response = await method.unary_unary(self._parse(await messages.receive(context, client)), context)
            n_bytes = response.ByteSize() if isinstance(response, Message) else len(response)
            answer.enter_context(self._unsent.hold(client, n_bytes))
            await _send(context, response)
            return
        if method.unary_stream is not None:
            responses = method.unary_stream(self._parse(await messages.receive(context, client)), context)
        else:
            first = self._parse(await messages.receive(context, client))
            responses = method.stream_stream(self._all_of(first, context), context)
        async with aclosing(responses):
            async for response in responses:
                await _send(context, response)

    def _parse(self, encoded: bytes) -> Any:  # noqa: ANN401 - a message of any type
        most = self._messages.room.max_bytes
        if most is not None and len(encoded) > most:
            raise InvalidRequest("request", f"message has {len(encoded)} bytes, wanted at most {most}")
        try:
            parsed = self._deserialize(encoded)
        except DecodeError:
            raise InvalidRequest("request", f"{len(encoded)} bytes are no valid message of this method") from None
        if not isinstance(parsed, SipdError):
            return parsed
        try:
            raise parsed
        finally:
            del parsed  # its traceback holds this frame, and with it the message, until the next garbage collection

    async def _all_of(self, first: Any, context: Context) -> AsyncIterator[Any]:  # noqa: ANN401
        """Yields a stream's messages; reflection's later ones are answers to ours."""
        yield first
        while (encoded := await context.read()) is not grpc.aio.EOF:
            yield self._parse(encoded)


async def _send(context: Context, response: object) -> None:
    """Sends a response; raises _UnreadError when the client does not take it."""
    sending = asyncio.ensure_future(context.write(response))
    try:
        done, _ = await asyncio.wait({sending}, timeout=UNREAD_S)
    except asyncio.CancelledError:
        sending.cancel()
        raise
    if not done:
        raise _UnreadError(sending)
    sending.result()
