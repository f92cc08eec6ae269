"""Wraps service methods for gRPC: the size limit, the protobuf parsing and the mapping of errors, once for all.

Invariant: a SipdError becomes its own status; anything else becomes INTERNAL with a fixed text and one log line.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from sipd.errors import InvalidRequest, SipdError
from sipd.server.failure import Failure, describe

_LOG = logging.getLogger("sipd.server")

if TYPE_CHECKING:  # at run time grpc's classes take no type arguments
    Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
    Handler: TypeAlias = grpc.RpcMethodHandler[Any, Any]

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


def unary_method(
    request_type: type[RequestT], behaviour: Callable[[RequestT], Awaitable[ResponseT]], max_bytes: Callable[[], int]
) -> Handler:
    """Returns the handler of a method with one answer."""

    async def handle(message: RequestT | SipdError, context: Context) -> ResponseT:
        try:
            return await behaviour(_accepted(message))
        except Exception as error:  # noqa: BLE001 - the guard of every call
            failure = _failure(error)
        del message  # the abort below keeps this frame until the next garbage collection
        return await _abort(failure, context)

    return grpc.unary_unary_rpc_method_handler(
        handle,
        request_deserializer=_parser(request_type, max_bytes),
        response_serializer=_serialize,
    )


def stream_method(
    request_type: type[RequestT],
    behaviour: Callable[[RequestT, Context], AsyncIterator[ResponseT]],
    max_bytes: Callable[[], int],
) -> Handler:
    """Returns the handler of a method that answers with a stream."""

    async def handle(message: RequestT | SipdError, context: Context) -> AsyncIterator[ResponseT]:
        try:
            async for response in behaviour(_accepted(message), context):
                yield response
        except Exception as error:  # noqa: BLE001 - the guard of every call
            failure = _failure(error)
        else:
            return
        del message  # the abort below keeps this frame until the next garbage collection
        await _abort(failure, context)

    return grpc.unary_stream_rpc_method_handler(
        handle,
        request_deserializer=_parser(request_type, max_bytes),
        response_serializer=_serialize,
    )


def service_handler(name: str, methods: Mapping[str, Handler]) -> grpc.GenericRpcHandler:
    """Returns the handler of the whole service `name` (`sipd.v1.StatusService`)."""
    return grpc.method_handlers_generic_handler(name, dict(methods))


def _parser(request_type: type[RequestT], max_bytes: Callable[[], int]) -> Callable[[bytes], RequestT | SipdError]:
    """Returns a deserializer that returns errors: what it raised would reach the client as UNKNOWN."""

    def parse(encoded: bytes) -> RequestT | SipdError:
        if len(encoded) > max_bytes():
            return InvalidRequest("input", f"request has {len(encoded)} bytes, wanted at most {max_bytes()}")
        try:
            message: RequestT = request_type.FromString(encoded)
        except DecodeError:
            return InvalidRequest("request", f"{len(encoded)} bytes are no valid {request_type.DESCRIPTOR.full_name}")
        return message

    return parse


def _serialize(message: Message) -> bytes:
    encoded: bytes = message.SerializeToString()
    return encoded


def _accepted(message: RequestT | SipdError) -> RequestT:
    if isinstance(message, SipdError):
        raise message
    return message


def _failure(error: Exception) -> Failure:
    """Returns the status of `error`; logs what is no SipdError."""
    if not isinstance(error, SipdError):
        _LOG.error("a call failed: %s", type(error).__name__, exc_info=error)
        error = SipdError("internal fault, see the daemon's log")
    return describe(error)


async def _abort(failure: Failure, context: Context) -> NoReturn:
    """Ends the call; called outside of any except clause, so that no traceback keeps a large message alive."""
    await context.abort(failure.code, failure.message, failure.trailing_metadata)
    raise asyncio.CancelledError  # abort never returns
