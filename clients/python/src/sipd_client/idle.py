"""A limit on silence: one thread that cancels a call when no event came for too long.

A total deadline would be wrong: a slow card may need minutes for a long prompt and still be well.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from types import TracebackType


class IdleWatch:
    """Calls `cancel` once, from its own thread, when one `with` block lasts longer than `timeout_s`.

    The time between blocks, in which the caller works on an event, does not count. `timeout_s` None never cancels.
    """

    def __init__(self, timeout_s: float | None, cancel: Callable[[], object]) -> None:
        """Starts the thread, unless `timeout_s` is None; `close` ends it."""
        self.expired = False
        self.timeout_s = math.inf if timeout_s is None else timeout_s
        self._cancel = cancel
        self._limit = math.inf  # time.monotonic() of the block under way; one store, so no lock
        self._closed = threading.Event()
        if timeout_s is not None:
            threading.Thread(target=self._run, name="sipd-idle", daemon=True).start()

    def __enter__(self) -> None:
        self._limit = time.monotonic() + self.timeout_s

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._limit = math.inf

    def close(self) -> None:
        """Ends the thread."""
        self._closed.set()

    def _run(self) -> None:
        # A block that starts after this look ends no earlier than the next one: no wake-up is late.
        while not self._closed.wait(min(self.timeout_s, max(0.0, self._limit - time.monotonic()))):
            if time.monotonic() >= self._limit:
                self.expired = True
                self._cancel()
                return
