"""Follows the memory limit and what happens in the cgroup while the daemon runs.

Invariant: a look is a few small reads and never blocks; nothing that it finds ends the daemon. While more is promised
than the limit holds, the ledger's shortfall says so, and new requests are refused by that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from sipd.cgroup import MemoryCgroup
from sipd.memory import Ledger
from sipd.process_memory import return_free_memory
from sipd.server.events import Events

LIMIT_MET_EVERY_S = 600.0  # page cache meets the limit all the time where reads are buffered: one line for many
CLOCK_JUMP_S = 60.0  # an NTP slew stays far below this within a tick


@runtime_checkable
class Fits(Protocol):
    """An engine that can give memory back, and take it again."""

    def shrink(self, over: Callable[[], int]) -> None:
        """Asks for memory to be given back at the next border between passes; any thread, never blocks.

        `over()` tells the bytes that are too much at that moment: what is given back makes it smaller.
        """

    def grow(self, room: Callable[[], int]) -> None:
        """Asks for what was given back to be taken again, as far as `room()` bytes go at that moment; as `shrink`."""


class MemoryWatch:
    """Owned by the event loop's thread; `look` is called every second or so."""

    def __init__(
        self,
        ledger: Ledger,
        engine: object,
        events: Events,
        cgroup: MemoryCgroup | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._ledger = ledger
        self._engine = engine
        self._events = events
        self._cgroup = cgroup
        self._clock = clock
        self._wall = wall
        self._granted = ledger.granted()
        self._kills = self._kills_by_level()
        self._n_met = self._met()
        self._met_since = clock()
        self._offset = wall() - clock()

    def look(self) -> None:
        """Takes a changed limit over, asks for memory back, and tells what the kernel counted."""
        self._look_at_limit()
        self._look_at_kills()
        self._look_at_charges()
        self._look_at_clock()

    def _look_at_limit(self) -> None:
        granted = self._ledger.granted()
        if granted < self._granted:
            self._events.memory_shrunk(self._granted - granted, self._ledger.shortfall())
        change = None if self._ledger.watch is None else self._ledger.watch.look()
        if change is not None:
            shortfall = self._ledger.relimit(change.now)
            if change.now.n_bytes != change.before.n_bytes:
                self._events.limit_changed(change.before, change.now, shortfall)
            if shortfall.n_bytes:
                return_free_memory()
        self._granted = self._ledger.granted()
        if not isinstance(self._engine, Fits):
            return
        if self._ledger.shortfall().n_bytes:
            self._engine.shrink(lambda: self._ledger.shortfall().n_bytes)
        elif change is not None:  # below a budget of one's own only the room for program files comes and goes
            self._engine.grow(self._ledger.remaining)

    def _look_at_kills(self) -> None:
        """Tells the lowest level in which somebody was killed; v2 counts him in every level above as well."""
        kills = self._kills_by_level()
        for level, n_killed in kills.items():
            if (n_new := n_killed - self._kills.get(level, n_killed)) > 0:
                self._events.oom_kill(n_new, str(level))
                break
        self._kills = kills

    def _look_at_charges(self) -> None:
        now, n_met = self._clock(), self._met()
        seconds = now - self._met_since
        if self._cgroup is None or n_met <= self._n_met or seconds < LIMIT_MET_EVERY_S:
            return
        limit = self._cgroup.limit_bytes() or 0
        self._events.limit_met(n_met - self._n_met, seconds, limit, self._cgroup.page_bytes().anonymous)
        self._n_met, self._met_since = n_met, now

    def _look_at_clock(self) -> None:
        offset = self._wall() - self._clock()
        if abs(offset - self._offset) > CLOCK_JUMP_S:
            self._events.clock_jumped(offset - self._offset)
        self._offset = offset

    def _kills_by_level(self) -> dict[Path, int]:
        if self._cgroup is None:
            return {}
        counted = ((level, self._cgroup.events(level).oom_kill) for level in self._cgroup.levels())
        return {level: n_killed for level, n_killed in counted if n_killed is not None}

    def _met(self) -> int:
        return 0 if self._cgroup is None else self._cgroup.events().max or 0
