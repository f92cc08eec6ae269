"""What the engine holds of the budget, fitted to a limit that moves while it runs.

Invariant: memory changes hands between passes and on the engine thread only. Pinned weights are given back first, as
that costs time alone, then KV pages; they are taken back in the opposite order. No token depends on any of it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from sipd.engine.executor import Executor
from sipd.engine.page_memory import PageMemory
from sipd.engine.request import Request
from sipd.engine.reuse import worst_case_pages
from sipd.size import format_size

_LOG = logging.getLogger("sipd.engine")


class MemoryFit:
    """Asked by any thread, done by the engine thread; `lock` guards what is asked and the queue."""

    def __init__(self, executor: Executor, pages: PageMemory | None, lock: threading.Condition) -> None:
        self._executor = executor
        self._pages = pages
        self._lock = lock
        self._over: Callable[[], int] | None = None
        self._room: Callable[[], int] | None = None

    def shrink(self, over: Callable[[], int]) -> None:
        """Asks for memory to be given back; `over()` tells the bytes that are too much at that moment."""
        with self._lock:
            self._over = over
            self._lock.notify()

    def grow(self, room: Callable[[], int]) -> None:
        """Asks for what was given back to be taken again; `room()` tells the bytes that are free at that moment."""
        with self._lock:
            self._room = room
            self._lock.notify()

    def settle(self, waiting: Sequence[Request]) -> None:
        """Does what was asked; between passes. `waiting` requests are admitted some day: pages for each of them stay.

        Memory that is wanted back comes before memory that may be taken.
        """
        with self._lock:
            over, self._over = self._over, None
            room, self._room = self._room, None
        if over is not None and (n_bytes := over()) > 0:
            self._give_back(n_bytes, waiting)
        elif room is not None and (n_bytes := room()) > 0:
            self._take_back(n_bytes)

    def _give_back(self, n_bytes: int, waiting: Sequence[Request]) -> None:
        n_bytes -= self._executor.give_back(n_bytes)
        if n_bytes <= 0 or self._pages is None:
            return
        with self._lock:  # no request is queued that the pool will never hold
            n_pages = self._pages.retire(n_bytes, max(map(worst_case_pages, waiting), default=0))
        self._pages.return_memory(n_pages)

    def _take_back(self, n_bytes: int) -> None:
        n_taken = 0 if self._pages is None else self._pages.take_back(n_bytes)
        n_taken += self._executor.take_back(n_bytes - n_taken)
        if n_taken:
            _LOG.info("the memory limit was raised: took %s back", format_size(n_taken))
