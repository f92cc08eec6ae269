"""KV pages that go back to the kernel, and the grant that follows them."""

from __future__ import annotations

import mmap

import pytest

from sipd.engine.kv_cache import PagePool
from sipd.engine.page_memory import PageMemory
from sipd.memory import Grant, Ledger, MemoryLimit
from sipd.process_memory import read_anonymous_bytes

N_PAGES = 8


class Rig:
    """Pages of `page_bytes` with every byte set, and the grant for them."""

    def __init__(self, page_bytes: int, least_pages: int = 0) -> None:
        self.page_bytes = page_bytes
        self.arena = mmap.mmap(-1, N_PAGES * page_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.arena.write(b"k" * (N_PAGES * page_bytes))
        self.ledger = Ledger(N_PAGES * page_bytes, 0, 0)
        self.grant: Grant = self.ledger.grant("KV cache", N_PAGES * page_bytes)
        self.pool = PagePool(N_PAGES, page_bytes)
        self.memory = PageMemory(self.pool, self.grant, self.page, least_pages)

    def page(self, index: int) -> memoryview:
        return memoryview(self.arena)[index * self.page_bytes : (index + 1) * self.page_bytes]

    def give_back(self, n_bytes: int, least_pages: int = 0) -> int:
        return self.memory.return_memory(self.memory.retire(n_bytes, least_pages))


def test_retired_pages_are_zeros_the_others_are_as_they_were_and_the_grant_shrinks() -> None:
    rig = Rig(2 * mmap.PAGESIZE)
    assert rig.give_back(3 * rig.page_bytes - 1) == 3 * rig.page_bytes
    assert rig.grant.n_bytes == 5 * rig.page_bytes
    assert rig.arena[:] == b"k" * (5 * rig.page_bytes) + b"\0" * (3 * rig.page_bytes)


def test_pages_that_share_a_page_of_the_kernel_with_one_in_use_spare_it() -> None:
    rig = Rig(mmap.PAGESIZE * 3 // 4)
    for index in range(3):  # pages 0 and 1 stay taken, 2 is free again
        assert rig.pool.take() == index
    rig.pool.give_back(2)
    rig.give_back(99 * rig.page_bytes)
    assert rig.pool.retired == (2, 3, 4, 5, 6, 7)
    assert rig.arena[: 2 * rig.page_bytes] == b"k" * (2 * rig.page_bytes)
    assert not any(rig.arena[2 * mmap.PAGESIZE :])


def test_the_memory_goes_back_to_the_kernel() -> None:
    rig = Rig(1 << 20)
    before = read_anonymous_bytes()
    rig.give_back(6 << 20)
    assert read_anonymous_bytes() <= before - (5 << 20)


@pytest.mark.parametrize(("own", "asked"), [(3, 0), (0, 3), (3, 2)])
def test_the_least_pages_stay_whoever_names_them(own: int, asked: int) -> None:
    rig = Rig(mmap.PAGESIZE, own)
    assert rig.give_back(1 << 30, asked) == (N_PAGES - 3) * mmap.PAGESIZE


def test_whole_pages_are_taken_back_and_no_more_than_were_given() -> None:
    rig = Rig(mmap.PAGESIZE)
    rig.give_back(4 * mmap.PAGESIZE)
    assert rig.memory.take_back(3 * mmap.PAGESIZE - 1) == 2 * mmap.PAGESIZE
    assert (rig.pool.n_pages, rig.grant.n_bytes) == (6, 6 * mmap.PAGESIZE)
    assert rig.memory.take_back(1 << 30) == 2 * mmap.PAGESIZE
    assert rig.memory.take_back(1 << 30) == 0
    assert (rig.pool.n_pages, rig.grant.n_bytes) == (N_PAGES, N_PAGES * mmap.PAGESIZE)


def test_nothing_is_taken_back_when_the_limit_has_fallen_again() -> None:
    rig = Rig(mmap.PAGESIZE)
    rig.give_back(4 * mmap.PAGESIZE)
    rig.ledger.relimit(MemoryLimit(4 * mmap.PAGESIZE, "cgroup v2"))
    assert rig.memory.take_back(mmap.PAGESIZE) == 0
    assert (rig.pool.n_pages, rig.grant.n_bytes) == (4, 4 * mmap.PAGESIZE)
