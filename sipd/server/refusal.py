"""Handlers that end a call before any of its message is received."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc

from sipd.errors import SipdError
from sipd.server.client_identity import identify_client
from sipd.server.failure import describe
from sipd.server.refusals import Refusals

if TYPE_CHECKING:
    from sipd.server.methods import Context, Handler


def refusal(error: SipdError, refusals: Refusals) -> Handler:
    """Returns a handler, for a method of any kind, that ends the call with `error` and takes note of it."""

    async def refuse(_messages: object, context: Context) -> None:
        refusals.note_call(identify_client(context).name, error)
        failure = describe(error)
        await context.abort(failure.code, failure.message, failure.trailing_metadata)

    # Streaming both ways: the only kind whose handler runs before any message is received.
    return grpc.stream_stream_rpc_method_handler(refuse)
