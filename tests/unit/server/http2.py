"""A client that speaks HTTP/2 by hand, for what no gRPC client does: it lets the server send no response."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

DATA, HEADERS, SETTINGS, PING = 0, 1, 4, 6  # frame types, RFC 9113 section 6
END_STREAM, END_HEADERS, ACK = 1, 4, 1
_INITIAL_WINDOW_SIZE = 4
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD_BYTES = 9
_MAX_FRAME, _INITIAL_WINDOW = 16384, 65535  # of a server that has said nothing else yet, RFC 9113 section 6.5.2


@dataclass(frozen=True, slots=True)
class Frame:
    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def encoded(self) -> bytes:
        return (
            struct.pack(">I", len(self.payload))[1:]
            + struct.pack(">BBI", self.kind, self.flags, self.stream)
            + (self.payload)
        )


class RawClient:
    """One connection, whose window for responses is closed until `open_window`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._next_stream = 1
        writer.write(_PREFACE + _window(0).encoded)

    def call(self, method: str, message: bytes | None = b"") -> int:
        """Begins a call, with its whole message or none; returns its stream."""
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        self._writer.write(Frame(HEADERS, END_HEADERS, stream, _fields(method)).encoded)
        if message is not None:
            body = b"\0" + struct.pack(">I", len(message)) + message
            assert len(body) < _INITIAL_WINDOW, "more than the server takes unasked"
            for start in range(0, len(body), _MAX_FRAME):
                flags = END_STREAM if start + _MAX_FRAME >= len(body) else 0
                self._writer.write(Frame(DATA, flags, stream, body[start : start + _MAX_FRAME]).encoded)
        return stream

    def open_window(self) -> None:
        """Lets responses come."""
        self._writer.write(_window(_INITIAL_WINDOW).encoded)

    async def until(self, kind: int, flag: int = 0) -> Frame:
        """Returns the next frame of a stream of that kind with that flag; answers pings and settings on the way."""
        while True:
            head = await self._reader.readexactly(_HEAD_BYTES)
            n_bytes, (frame_kind, flags, stream) = int.from_bytes(head[:3]), struct.unpack(">BBI", head[3:])
            frame = Frame(frame_kind, flags, stream, await self._reader.readexactly(n_bytes))
            if frame.kind in (SETTINGS, PING) and not frame.flags & ACK:
                payload = frame.payload if frame.kind == PING else b""
                self._writer.write(Frame(frame.kind, ACK, 0, payload).encoded)
            if frame.kind == kind and frame.stream and frame.flags & flag == flag:
                return frame


@asynccontextmanager
async def raw_client(target: str) -> AsyncIterator[RawClient]:
    """Connects to `unix:PATH`, and ends the connection without a word."""
    reader, writer = await asyncio.open_unix_connection(target.removeprefix("unix:"))
    try:
        yield RawClient(reader, writer)
    finally:
        writer.transport.abort()


def _window(n_bytes: int) -> Frame:
    return Frame(SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW_SIZE, n_bytes))


def _fields(method: str) -> bytes:
    """Returns the header fields of a call as literals that no table keeps (RFC 7541 section 6.2.2)."""
    fields: Sequence[tuple[str, str]] = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    )
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in fields)


def _text(text: str) -> bytes:
    assert len(text) < 127, "longer ones take more than one byte of length"
    return bytes([len(text)]) + text.encode()
