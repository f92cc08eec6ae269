"""Lets calls send their first message, a few at a time, and shows out those that send nothing.

A message takes its whole size before anything can look at it. Until gRPC is told to read it, flow control holds back
all but 64 KiB, so a call that waits here costs next to nothing.

Owned by the event loop's thread. Invariant: of one kind of call at most `n_at_once` + `max_late` are sending; the more
of them wait, the sooner one that sends nothing makes room.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from sipd.errors import DeadlineExceeded, InvalidRequest, Overloaded
from sipd.server.client_identity import ClientIdentity

if TYPE_CHECKING:
    from sipd.server.methods import Context

PATIENCE_S = 1.0  # a client that opens a call and sends nothing holds its place no longer, though nobody else waits
LATE_S = 20.0  # 5 MB at 250 kB/s, a bad Wi-Fi
LEAST_PATIENCE_S = 0.05  # a small message comes in the same packets as its call
_RETRY_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class Room:
    """How one kind of call may send."""

    n_at_once: int
    max_late: int  # slow senders that may go on beside the others
    max_bytes: int | None = None  # of a message; None: the methods have limits of their own

    def patience_s(self, n_waiting: int) -> float:
        """Returns how long one call may take while `n_waiting` others wait for its place."""
        if not n_waiting:
            return PATIENCE_S
        if self.max_bytes is not None:
            return LEAST_PATIENCE_S
        return max(LEAST_PATIENCE_S, PATIENCE_S / (n_waiting + 1))


# One at once: 5 MB of prompt take 12 MB for a moment, slices and then their copy in one piece.
PROMPTS = Room(n_at_once=1, max_late=4)
# Questions of a few bytes, names of models, services and files.
SMALL = Room(n_at_once=2, max_late=1, max_bytes=4096)


class FirstMessages:
    """The room of one kind of call, and who is in it."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self._places = asyncio.Semaphore(room.n_at_once)
        self._n_waiting = 0
        self._late: Counter[str] = Counter()

    async def receive(self, context: Context, client: ClientIdentity) -> bytes:
        """Returns a call's first message; raises DeadlineExceeded, Overloaded or InvalidRequest."""
        self._n_waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._n_waiting -= 1
        receiving = asyncio.ensure_future(_first(context))
        try:
            await self._wait_for(receiving)
        except asyncio.CancelledError:
            receiving.cancel()
            raise
        finally:
            self._places.release()
        return receiving.result() if receiving.done() else await self._receive_late(receiving, client)

    async def _wait_for(self, receiving: asyncio.Future[bytes]) -> None:
        """Returns when the message is there, or when it has taken longer than those who wait put up with."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not receiving.done() and loop.time() - began < self.room.patience_s(self._n_waiting):
            await asyncio.wait({receiving}, timeout=LEAST_PATIENCE_S)

    async def _receive_late(self, receiving: asyncio.Future[bytes], client: ClientIdentity) -> bytes:
        if self._is_late_room_full(client):
            receiving.cancel()
            raise Overloaded("the message did not come in time, as others' did not", _RETRY_AFTER_S)
        self._late[client.name] += 1
        try:
            async with asyncio.timeout(LATE_S):
                return await receiving
        except TimeoutError:
            raise DeadlineExceeded(f"the message did not come within {LATE_S:g} s") from None
        finally:
            self._late[client.name] -= 1
            if not self._late[client.name]:
                del self._late[client.name]

    def _is_late_room_full(self, client: ClientIdentity) -> bool:
        """One client has at most half of it, where it can be told from others."""
        most = self.room.max_late
        if self._late.total() >= most:
            return True
        return not client.is_shared and self._late[client.name] >= max(1, most // 2)


async def _first(context: Context) -> bytes:
    """Returns the first message; grpc's own iterator would keep it alive as long as the call's last traceback."""
    encoded: Any = await context.read()
    if encoded is grpc.aio.EOF:
        raise InvalidRequest("request", "the call ended without a message, wanted one")
    return bytes(encoded)
