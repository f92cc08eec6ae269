"""The KV cache's pages: who holds which, and who may still take how many.

Owned by the engine thread. Invariant: pages promised to live requests (taken, shared or still to be taken) never exceed
the pool, so that an admitted request never waits for memory. Every other page is free or kept for reuse, or retired:
out of the pool until it is restored.
"""

from __future__ import annotations

from collections.abc import Callable

from sipd.kernels.binding import PAGE_POSITIONS


def pages_for(n_positions: int) -> int:
    """Pages that hold `n_positions`."""
    return -(-n_positions // PAGE_POSITIONS)


def _nothing_to_give_up() -> bool:
    return False


class PagePool:
    """The pages of one model; `n_pages` are in the pool now."""

    def __init__(self, n_pages: int, page_bytes: int) -> None:
        self.n_pages = n_pages
        self.page_bytes = page_bytes
        self.give_up: Callable[[], bool] = _nothing_to_give_up  # frees a page that is only kept for reuse
        self._free = list(range(n_pages - 1, -1, -1))  # low pages first: high ones stay untouched memory
        self._retired: list[int] = []  # ascending
        self._n_promised = 0

    @property
    def retired(self) -> tuple[int, ...]:
        """Pages that are no part of the pool now, ascending."""
        return tuple(self._retired)

    @property
    def n_filled(self) -> int:
        """Pages that hold keys and values now, those kept for reuse included."""
        return self.n_pages - len(self._free)

    @property
    def n_promised(self) -> int:
        """Pages that live requests hold or may still take."""
        return self._n_promised

    def promise(self, n_pages: int) -> bool:
        """The right to hold `n_pages` more; False when others have been promised too many."""
        if self._n_promised + n_pages > self.n_pages:
            return False
        self._n_promised += n_pages
        return True

    def release_promise(self, n_pages: int) -> None:
        """Takes a promise back."""
        self._n_promised -= n_pages

    def take(self) -> int:
        """One page; the caller's promise guarantees that one is free or can be given up."""
        if not self._free:
            gave = self.give_up()
            assert gave, "more pages were promised than there are"
        return self._free.pop()

    def give_back(self, page: int) -> None:
        """A page that nobody needs any more."""
        self._free.append(page)

    def retire(self, n_pages: int, least: int) -> int:
        """Takes up to `n_pages` out of the pool, free ones first, then those kept for reuse; returns how many.

        At least `least` stay, and all that live requests have been promised.
        """
        n = max(0, min(n_pages, self.n_pages - max(self._n_promised, least)))
        while len(self._free) < n and self.give_up():
            pass
        n = min(n, len(self._free))
        self._free.sort(reverse=True)  # the highest go: neighbours, and often never touched
        self._retired = sorted(self._retired + self._free[:n])
        self._free = self._free[n:]
        self.n_pages -= n
        return n

    def restore(self, n_pages: int) -> int:
        """Puts up to `n_pages` retired pages back into the pool, the lowest first; returns how many."""
        back = self._retired[:n_pages]
        self._retired = self._retired[len(back) :]
        self.n_pages += len(back)  # first: another thread may count the filled ones meanwhile
        self._free = sorted(self._free + back, reverse=True)
        return len(back)


class PageList:
    """The pages of one sequence, in the order of its positions.

    The first `n_shared` belong to the prefix cache, which others may read too; the rest are its own and grow on demand.
    """

    def __init__(self, pool: PagePool, n_promised: int, owner: str = "") -> None:
        """`n_promised` pages of its own, already promised by the pool; `owner` is whose tokens they hold."""
        self.owner = owner
        self._pool = pool
        self._n_promised = n_promised
        self.pages: list[int] = []
        self.n_shared = 0

    @property
    def n_bytes(self) -> int:
        """Bytes of the pages held."""
        return len(self.pages) * self._pool.page_bytes

    @property
    def n_positions(self) -> int:
        """Positions that the pages have room for."""
        return len(self.pages) * PAGE_POSITIONS

    @property
    def n_promised(self) -> int:
        """Pages of its own that it holds or may still take."""
        return self._n_promised

    def share(self, page: int) -> None:
        """Appends a page of the prefix cache, which has its own promise."""
        assert self.n_shared == len(self.pages), "shared pages come first"
        self.pages.append(page)
        self.n_shared += 1

    def cover(self, n_positions: int) -> None:
        """Takes pages until `n_positions` fit."""
        while len(self.pages) < pages_for(n_positions):
            assert len(self.pages) - self.n_shared < self._n_promised, "a sequence outgrew its promise"
            self.pages.append(self._pool.take())

    def hand_over(self, page: int) -> int:
        """Its first own page goes to the prefix cache, and is replaced by `page`, the cache's copy of it (or itself).

        Returns the page that was its own. The promise for it is given back: the cache holds one from now on.
        """
        own = self.pages[self.n_shared]
        self.pages[self.n_shared] = page
        self.n_shared += 1
        self._n_promised -= 1
        self._pool.release_promise(1)
        return own

    def release(self) -> None:
        """Gives its own pages and the promise back, and forgets the shared ones; a second call does nothing."""
        for page in reversed(self.pages[self.n_shared :]):
            self._pool.give_back(page)
        self._pool.release_promise(self._n_promised)
        self.pages = []
        self.n_shared = self._n_promised = 0
