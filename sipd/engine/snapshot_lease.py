"""The right of the disk's thread to touch pages, which the engine can end at any moment.

Invariant: bytes go to and from pages only while the lease is held, and nobody holds it while waiting for a disk. So
`end` returns at once, and what a disk that hung delivers afterwards lands in no page.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Hold = Callable[[], AbstractContextManager[object]]


class LeaseEndedError(Exception):
    """The pages belong to somebody else now."""


class Lease:
    """One job's right to its pages."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_ended = False

    @contextmanager
    def hold(self) -> Iterator[None]:
        """For one copy between a page and a buffer; raises LeaseEndedError when it is too late for that."""
        with self._lock:
            if self._is_ended:
                raise LeaseEndedError
            yield

    def end(self) -> None:
        """Ends it for good; waits for the copy under way."""
        with self._lock:
            self._is_ended = True
