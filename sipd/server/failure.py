"""Turns a SipdError into a gRPC status with google.rpc details; the only place that does.

Invariant: every status carries ErrorInfo(reason, domain "sipd"); a message never holds prompt or reply text.
"""

from __future__ import annotations

from dataclasses import dataclass

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from sipd.errors import InvalidRequest, MemoryLimitLowered, Overloaded, PromptTooLong, SipdError, StorageFault

DOMAIN = "sipd"
_DETAILS_KEY = "grpc-status-details-bin"


@dataclass(frozen=True, slots=True)
class Failure:
    """What a call ends with."""

    code: grpc.StatusCode
    message: str
    trailing_metadata: tuple[tuple[str, bytes], ...]


def describe(error: SipdError) -> Failure:
    """Returns the status of `error`: its code, its text, and ErrorInfo, BadRequest and RetryInfo where they apply."""
    code = grpc.StatusCode[error.grpc_status]
    status = status_pb2.Status(code=code.value[0], message=str(error))
    for detail in _details(error):
        status.details.add().Pack(detail)
    return Failure(code, str(error), ((_DETAILS_KEY, status.SerializeToString()),))


def _details(error: SipdError) -> list[Message]:
    details: list[Message] = [
        error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=_metadata(error))
    ]
    if isinstance(error, InvalidRequest):
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=error.description)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(error, Overloaded):
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        details.append(retry)
    return details


def _metadata(error: SipdError) -> dict[str, str]:
    """Returns the numbers of an error, so that a client need not parse the text."""
    if isinstance(error, PromptTooLong):
        return {"prompt_tokens": str(error.prompt_tokens), "context_tokens": str(error.context_tokens)}
    if isinstance(error, MemoryLimitLowered):
        return {"limit_bytes": str(error.limit_bytes), "needed_bytes": str(error.needed_bytes)}
    if isinstance(error, StorageFault):
        return {"path": error.path, "offset": str(error.offset)}
    return {}
