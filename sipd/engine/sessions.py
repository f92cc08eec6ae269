"""Named sessions: whose pages outlive their request until the next turn, an idle time or too many others.

A session is a claim on pages of the prefix cache, no more: the next turn finds them by its token ids as any request
does, so a wrong or stolen name changes no text. Owned by the engine thread.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from sipd.engine.prefix_cache import Node, PrefixCache

SessionKey = str  # owner and name, as the server scoped it


@dataclass(slots=True)
class _Session:
    leaf: Node
    last_used_s: float


class Sessions:
    """At most `most` sessions, each let go after `idle_s` seconds without a turn."""

    def __init__(self, cache: PrefixCache, most: int, idle_s: float) -> None:
        self._cache = cache
        self._most = most
        self._idle_s = idle_s
        self._sessions: OrderedDict[SessionKey, _Session] = OrderedDict()  # the longest idle first

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def keys(self) -> list[SessionKey]:
        """Of all sessions, the longest idle first."""
        return list(self._sessions)

    def keep(self, key: SessionKey, leaf: Node, now: float) -> list[SessionKey]:
        """Notes where a session's turn ended; `now` in seconds. Returns the sessions that had to go for it."""
        self.end(key)
        if not self._most:
            return [key]
        self._cache.mark_session(leaf)
        self._sessions[key] = _Session(leaf, now)
        gone = []
        while len(self._sessions) > self._most:
            gone.append(next(iter(self._sessions)))
            self.end(gone[-1])
        return gone

    def end(self, key: SessionKey) -> None:
        """Lets a session go; does nothing when there is none."""
        session = self._sessions.pop(key, None)
        if session is not None:
            self._cache.unmark_session(session.leaf)

    def expire(self, now: float) -> list[SessionKey]:
        """Lets go what has been idle for too long; returns whose."""
        gone = []
        while self._sessions:
            key, session = next(iter(self._sessions.items()))
            if now - session.last_used_s < self._idle_s:
                break
            gone.append(key)
            self.end(key)
        return gone
