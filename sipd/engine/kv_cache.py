"""The KV cache's pages: who holds which, and who may still take how many.

Owned by the engine thread. Invariant: reserved pages never exceed the pool, and pages in use never exceed what is
reserved, so that an admitted request never waits for memory.
"""

from __future__ import annotations

from sipd.kernels.binding import PAGE_POSITIONS


def pages_for(n_positions: int) -> int:
    """Pages that hold `n_positions`."""
    return -(-n_positions // PAGE_POSITIONS)


class PagePool:
    """All pages of one model."""

    def __init__(self, n_pages: int, page_bytes: int) -> None:
        self.n_pages = n_pages
        self.page_bytes = page_bytes
        self._free = list(range(n_pages - 1, -1, -1))  # low pages first: high ones stay untouched memory
        self._n_reserved = 0

    @property
    def n_in_use(self) -> int:
        """Pages that hold keys and values now."""
        return self.n_pages - len(self._free)

    def reserve(self, n_pages: int) -> PageList | None:
        """The right to take up to `n_pages`; None when others have reserved too many."""
        if self._n_reserved + n_pages > self.n_pages:
            return None
        self._n_reserved += n_pages
        return PageList(self, n_pages)

    def take(self) -> int:
        """One free page; the caller's reservation guarantees that there is one."""
        return self._free.pop()

    def give_back(self, pages: list[int], n_reserved: int) -> None:
        """Returns pages and the reservation that they were taken under."""
        self._free.extend(reversed(pages))
        self._n_reserved -= n_reserved


class PageList:
    """The pages of one sequence, in the order of its positions; grows on demand within its reservation."""

    def __init__(self, pool: PagePool, n_reserved: int) -> None:
        self._pool = pool
        self._n_reserved = n_reserved
        self.pages: list[int] = []

    @property
    def n_bytes(self) -> int:
        """Bytes of the pages held."""
        return len(self.pages) * self._pool.page_bytes

    def cover(self, n_positions: int) -> None:
        """Takes pages until `n_positions` fit."""
        while len(self.pages) < pages_for(n_positions):
            assert len(self.pages) < self._n_reserved, "a sequence outgrew its reservation"
            self.pages.append(self._pool.take())

    def release(self) -> None:
        """Gives everything back; a second call does nothing."""
        self._pool.give_back(self.pages, self._n_reserved)
        self.pages = []
        self._n_reserved = 0
