"""Tells the journal of what was refused: the first of a kind at once, then counts.

Two kinds: requests that found no room (what an operator can do something about), and calls that ended before there was
a request to record. What the client did wrong in a request that was read is no event: its record tells it.

Owned by the event loop's thread. Invariant: a kind and reason is at most one event in EVERY_S, however many there are,
and every refusal is counted in exactly one event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sipd.errors import MemoryLimitLowered, OverBudget, Overloaded, SipdError
from sipd.server.events import Events

EVERY_S = 60.0
_WANT_OF_ROOM = (OverBudget, MemoryLimitLowered, Overloaded)

Later = Callable[[float, Callable[[], None]], object]
Kind = tuple[bool, str]  # whether it is a call without a request, and the reason


@dataclass(slots=True)
class _More:
    """Refusals of a kind since its last event. Not the errors themselves: their tracebacks keep whole prompts."""

    n: int = 0
    name: str = ""
    text: str = ""


class Refusals:
    """Counts refusals by kind and reason."""

    def __init__(self, events: Events, later: Later) -> None:
        """`later(seconds, call)` calls in the event loop's thread, as its `call_later` does."""
        self._events = events
        self._later = later
        self._more: dict[Kind, _More] = {}  # what was told less than EVERY_S ago

    def note(self, request_id: str, error: SipdError) -> None:
        """Takes note of a refused request; errors other than for want of room are ignored."""
        if isinstance(error, _WANT_OF_ROOM):
            self._count((False, error.reason), request_id, str(error))

    def note_call(self, client: str, error: SipdError) -> None:
        """Takes note of a call that ended without a request to record; whose it was stands for its name."""
        self._count((True, error.reason), client, str(error))

    def _count(self, kind: Kind, name: str, text: str) -> None:
        more = self._more.get(kind)
        if more is None:
            self._tell(kind, _More(1, name, text))
        else:
            more.n, more.name, more.text = more.n + 1, name, text

    def _tell(self, kind: Kind, refused: _More) -> None:
        is_call, reason = kind
        if is_call:
            self._events.call_refused(refused.name, reason, refused.text, refused.n)
        else:
            self._events.request_refused(refused.name, reason, refused.text, refused.n)
        self._more[kind] = _More()
        self._later(EVERY_S, lambda: self._tell_more(kind))

    def _tell_more(self, kind: Kind) -> None:
        more = self._more.pop(kind)
        if more.n:
            self._tell(kind, more)
