"""The memory of the KV pages and the grant for it: given back under a lowered limit, taken again when it is raised.

Owned by the engine thread. Invariant: the grant is what the pages of the pool take; a retired page keeps no memory, but
for what it shares with a neighbour's page of the kernel.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
from collections.abc import Callable

from sipd.engine.kv_cache import PagePool
from sipd.errors import BudgetError
from sipd.memory import Grant

_LOG = logging.getLogger("sipd.engine")


class PageMemory:
    """The KV pages of one model, from what the layout gave them downwards."""

    def __init__(self, pool: PagePool, grant: Grant, page: Callable[[int], memoryview], least_pages: int) -> None:
        """`page` gives the bytes of a page, pages lie one behind the other; `least_pages` are never given back."""
        self._pool = pool
        self._grant = grant
        self._page = page
        self._least_pages = least_pages
        self._advise = ctypes.CDLL(None, use_errno=True).madvise
        self._advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def retire(self, n_bytes: int, least_pages: int) -> int:
        """Takes pages of `n_bytes`, rounded up, out of the pool, or as many as may go; returns how many went.

        `least_pages` stay beside those that live requests have been promised. Their memory goes with `return_memory`.
        """
        return self._pool.retire(-(-n_bytes // self._pool.page_bytes), max(least_pages, self._least_pages))

    def return_memory(self, n_pages: int) -> int:
        """Gives the memory of retired pages to the kernel, and `n_pages` of the grant back; returns the bytes."""
        for first, last in _runs(self._pool.retired):
            self._drop(self._address(first), self._address(last) + self._pool.page_bytes)
        n_bytes = n_pages * self._pool.page_bytes
        self._grant.resize(self._grant.n_bytes - n_bytes)
        return n_bytes

    def take_back(self, n_bytes: int) -> int:
        """Puts retired pages back into the pool that `n_bytes` hold; returns the bytes taken."""
        n_pages = min(n_bytes // self._pool.page_bytes, len(self._pool.retired))
        taken = n_pages * self._pool.page_bytes
        try:
            self._grant.resize(self._grant.n_bytes + taken)
        except BudgetError:  # the limit was lowered again meanwhile
            return 0
        self._pool.restore(n_pages)
        return taken

    def _address(self, page: int) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self._page(page)))

    def _drop(self, begin: int, end: int) -> None:
        """Gives what the kernel's pages between two addresses hold back; they read as zeros until written again."""
        begin, end = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
        if end <= begin:
            return
        # else the kernel may make a huge page of the neighbours, and fill what went
        self._advise(begin, end - begin, mmap.MADV_NOHUGEPAGE)
        if self._advise(begin, end - begin, mmap.MADV_DONTNEED):
            reason = os.strerror(ctypes.get_errno())
            _LOG.warning("%d bytes of KV pages could not be given back to the kernel: %s", end - begin, reason)


def _runs(pages: tuple[int, ...]) -> list[tuple[int, int]]:
    """(first, last) of the runs of neighbours in ascending `pages`."""
    runs: list[tuple[int, int]] = []
    for page in pages:
        if runs and runs[-1][1] == page - 1:
            runs[-1] = (runs[-1][0], page)
        else:
            runs.append((page, page))
    return runs
