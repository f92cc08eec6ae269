"""Errors of a call: the gRPC status and what its google.rpc details say.

SipdClientError     the daemon, or the way to it, failed the call
└── IdleTimeout     the daemon gave no sign of life for too long; the call was cancelled
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

DETAILS_KEY = "grpc-status-details-bin"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types of the protobuf encoding


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """A field of the request that was refused, and why."""

    field: str
    description: str


class SipdClientError(Exception):
    """A failed call; `str(error)` is one line of status, reason and message."""

    def __init__(
        self,
        status: str,
        message: str,
        *,
        reason: str = "",
        metadata: dict[str, str] | None = None,
        violations: tuple[FieldViolation, ...] = (),
        retry_after_s: float | None = None,
    ) -> None:
        """Keeps `status` (name of the gRPC status) and what the details told; `reason` is empty without them."""
        super().__init__(f"{status} {reason or '-'}: {' '.join(message.split())}")
        self.status = status
        self.message = message
        self.reason = reason
        self.metadata = metadata or {}
        self.violations = violations
        self.retry_after_s = retry_after_s


class IdleTimeout(SipdClientError):
    """No event came for `idle_timeout_s` seconds; the daemon sends one every few seconds while it lives."""

    def __init__(self, idle_timeout_s: float) -> None:
        super().__init__("DEADLINE_EXCEEDED", f"no event for {idle_timeout_s:g} s", reason="IDLE_TIMEOUT")
        self.idle_timeout_s = idle_timeout_s


def error_of(status: str, message: str | None, trailing: Iterable[tuple[str, str | bytes]] | None) -> SipdClientError:
    """Returns the error for a gRPC status; `trailing` is the call's trailing metadata. Broken details are ignored."""
    for key, value in trailing or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                return _with_details(status, message or "", value)
            except (ValueError, IndexError):
                break
    return SipdClientError(status, message or "")


def _with_details(status: str, message: str, encoded: bytes) -> SipdClientError:
    """Returns the error for an encoded google.rpc.Status."""
    reason, metadata, violations, retry_after_s = "", {}, [], None
    for name, detail in _details(encoded):
        if name == "google.rpc.ErrorInfo":
            reason = _text(detail, 1)
            metadata = {_text(entry, 1): _text(entry, 2) for entry in _messages(detail, 3)}
        elif name == "google.rpc.BadRequest":
            violations = [FieldViolation(_text(entry, 1), _text(entry, 2)) for entry in _messages(detail, 1)]
        elif name == "google.rpc.RetryInfo":
            for delay in _messages(detail, 1):
                numbers = {number: value for number, value in _fields(delay) if isinstance(value, int)}
                retry_after_s = numbers.get(1, 0) + numbers.get(2, 0) / 1e9
    return SipdClientError(
        status,
        message,
        reason=reason,
        metadata=metadata,
        violations=tuple(violations),
        retry_after_s=retry_after_s,
    )


def _details(encoded: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields (message name, encoded message) for each google.protobuf.Any in field 3 of a google.rpc.Status."""
    for packed in _messages(encoded, 3):
        yield _text(packed, 1).rpartition("/")[2], b"".join(_messages(packed, 2))


def _messages(encoded: bytes, wanted: int) -> list[bytes]:
    """Returns every length-delimited value of field `wanted`."""
    return [value for number, value in _fields(encoded) if number == wanted and isinstance(value, bytes)]


def _text(encoded: bytes, wanted: int) -> str:
    """Returns the string in field `wanted`; empty when absent."""
    return b"".join(_messages(encoded, wanted)[-1:]).decode("utf-8")


def _fields(encoded: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields (field number, value) of an encoded message (protobuf encoding guide, "Message Structure").

    Three google.rpc messages of a few fields are all that is read: not worth another dependency. Raises ValueError or
    IndexError where the encoding is broken.
    """
    at = 0
    while at < len(encoded):
        key, at = _varint(encoded, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(encoded, at)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, at = _varint(encoded, at)
        elif kind in {_FIXED64, _FIXED32}:
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind} at byte {at}")
        if at + size > len(encoded):
            raise ValueError(f"field of {size} bytes at byte {at} of {len(encoded)}")
        yield key >> 3, encoded[at : at + size]
        at += size


def _varint(encoded: bytes, at: int) -> tuple[int, int]:
    """Returns the number at byte `at` and the place after it; raises IndexError past the end."""
    value = shift = 0
    while True:
        byte = encoded[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
