"""Handlers that end a call before any of its message is received."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from sipd.errors import SipdError
from sipd.server.failure import describe

if TYPE_CHECKING:
    from sipd.server.methods import Handler


def refusal(error: SipdError) -> Handler:
    """Returns a handler, for a method of any kind, that ends the call with `error`."""

    async def refuse(_messages: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        failure = describe(error)
        await context.abort(failure.code, failure.message, failure.trailing_metadata)

    # Streaming both ways: the only kind whose handler runs before any message is received.
    return grpc.stream_stream_rpc_method_handler(refuse)
