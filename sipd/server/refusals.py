"""Tells the journal that requests are refused for want of room: the first of a kind at once, then counts.

Owned by the event loop's thread. Invariant: a kind of refusal is at most one event in EVERY_S, however many there are,
and every refusal is counted in exactly one event. What the client did wrong is no event: its request's record tells it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sipd.errors import MemoryLimitLowered, OverBudget, Overloaded, SipdError
from sipd.server.events import Events

EVERY_S = 60.0
_WANT_OF_ROOM = (OverBudget, MemoryLimitLowered, Overloaded)  # what an operator can do something about

Later = Callable[[float, Callable[[], None]], object]


@dataclass(slots=True)
class _More:
    """Refusals of a kind since its last event. Not the errors themselves: their tracebacks keep whole prompts."""

    n: int = 0
    request_id: str = ""
    text: str = ""


class Refusals:
    """Counts refusals by their reason."""

    def __init__(self, events: Events, later: Later) -> None:
        """`later(seconds, call)` calls in the event loop's thread, as its `call_later` does."""
        self._events = events
        self._later = later
        self._more: dict[str, _More] = {}  # reasons that were told less than EVERY_S ago

    def note(self, request_id: str, error: SipdError) -> None:
        """Takes note of a refused request; errors of other kinds are ignored."""
        if not isinstance(error, _WANT_OF_ROOM):
            return
        more = self._more.get(error.reason)
        if more is None:
            self._tell(error.reason, _More(1, request_id, str(error)))
        else:
            more.n, more.request_id, more.text = more.n + 1, request_id, str(error)

    def _tell(self, reason: str, refused: _More) -> None:
        self._events.request_refused(refused.request_id, reason, refused.text, refused.n)
        self._more[reason] = _More()
        self._later(EVERY_S, lambda: self._tell_more(reason))

    def _tell_more(self, reason: str) -> None:
        more = self._more.pop(reason)
        if more.n:
            self._tell(reason, more)
