"""The bridge of one request from the engine's thread to the event loop.

Invariant: the engine's side never blocks and never raises. A reader that leaves MAX_PENDING events lying parks its own
request: its rows leave the passes until it has caught up, so a stalled reader costs a bounded amount and delays nobody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sipd.engine.request import FinishReason, Outcome, SampledToken
from sipd.server.contracts import AssemblerLike
from sipd.v1 import generation_pb2 as pb

MAX_PENDING = 64  # events; with 20 log probabilities each about 100 KB
_RAN_OUT = (FinishReason.LENGTH, FinishReason.CONTEXT)


class Ending:
    """The last item of the queue: how the request ended, and the stop string that matched."""

    __slots__ = ("outcome", "stop_string")

    def __init__(self, outcome: Outcome, stop_string: str | None) -> None:
        self.outcome = outcome
        self.stop_string = stop_string


class RequestSink:
    """Implements engine.request.Sink, whose methods run in the engine's thread; the others run in the event loop's."""

    def __init__(
        self,
        assembler: AssemblerLike | None,
        end_ids: frozenset[int],
        on_started: Callable[[], None],
        on_finished: Callable[[Outcome], None],
        *,
        has_logprobs: bool,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[pb.Token | Ending | None] = asyncio.Queue()
        self._assembler = assembler
        self._end_ids = end_ids
        self._on_started = on_started
        self._on_finished = on_finished
        self._has_logprobs = has_logprobs
        self._waiting: deque[SampledToken] = deque()  # tokens whose text is held back
        self._stop_string: str | None = None
        self._is_nudged = False
        self._n_posted = 0  # written by the engine's thread
        self._n_taken = 0  # written by the event loop's

    def is_reader_behind(self) -> bool:
        """Whether MAX_PENDING events wait for the reader; asked by the engine's thread."""
        return self._n_posted - self._n_taken >= MAX_PENDING

    def started(self) -> None:
        """The request was admitted: the places of all that wait have changed."""
        self._call(lambda _: self._on_started(), None)

    def token(self, token: SampledToken) -> bool:
        """Sends what became stable; returns True when a stop string matched."""
        if token.token_id in self._end_ids:  # an end token has no text and is told in Finished
            return False
        self._waiting.append(token)
        if self._assembler is None:
            self._send("", (token.token_id,))
            return False
        piece = self._assembler.push(token.token_id)
        self._send(piece.text, piece.ids)
        self._stop_string = piece.matched
        return piece.matched is not None

    def finished(self, outcome: Outcome) -> None:
        """Sends what is held back, then the end."""
        if self._assembler is not None and self._stop_string is None:
            piece = self._assembler.flush()
            self._send(piece.text, piece.ids)
            self._stop_string = piece.matched
            if piece.matched is not None and outcome.reason in _RAN_OUT:
                outcome = replace(outcome, reason=FinishReason.STOP)  # by the U+FFFD of a character cut off
        self._post(self._finish, Ending(outcome, self._stop_string))

    def nudge(self) -> None:
        """Wakes the reader although there is no event, since the request's place in the queue may have changed."""
        if not self._is_nudged:  # one is enough, however slow the reader
            self._is_nudged = True
            self._events.put_nowait(None)

    async def next_event(self) -> pb.Token | Ending | None:
        """Waits for the next item: None is a nudge, the Ending is the last."""
        event = await self._events.get()
        if event is None:
            self._is_nudged = False
        else:
            self._n_taken += 1
        return event

    def _finish(self, ending: Ending) -> None:
        self._events.put_nowait(ending)
        self._on_finished(ending.outcome)

    def _send(self, text: str, ids: tuple[int, ...]) -> None:
        if not text and not ids:
            return
        event = pb.Token(text=text, ids=ids)
        for _ in ids:
            token = self._waiting.popleft()
            if self._has_logprobs and token.logprob is not None:
                top = [pb.TopLogprob(id=token_id, logprob=logprob) for token_id, logprob in token.top]
                event.logprobs.append(pb.Logprob(id=token.token_id, logprob=token.logprob, top=top))
        self._post(self._events.put_nowait, event)

    def _post(self, callback: Callable[[Any], object], item: object) -> None:
        self._n_posted += 1
        self._call(callback, item)

    def _call(self, callback: Callable[[Any], object], item: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, item)
        except RuntimeError:  # the loop is closed: the daemon is exiting and nobody listens
            return
