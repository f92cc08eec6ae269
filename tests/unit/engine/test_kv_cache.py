"""Pages of the KV cache: promises, growth on demand, and what is given back."""

from __future__ import annotations

import pytest

from sipd.engine.kv_cache import PageList, PagePool, pages_for


@pytest.mark.parametrize(("n_positions", "n_pages"), [(0, 0), (1, 1), (32, 1), (33, 2), (64, 2), (65, 3)])
def test_pages_hold_32_positions(n_positions: int, n_pages: int) -> None:
    assert pages_for(n_positions) == n_pages


def page_list(pool: PagePool, n_pages: int) -> PageList:
    assert pool.promise(n_pages)
    return PageList(pool, n_pages)


def test_promises_never_exceed_the_pool() -> None:
    pool = PagePool(5, 100)
    assert [pool.promise(n) for n in (3, 3, 2, 1)] == [True, False, True, False]


def test_a_promise_takes_no_page_before_it_is_needed() -> None:
    pool = PagePool(5, 100)
    pages = page_list(pool, 3)
    assert pool.n_filled == 0
    pages.cover(33)
    assert (pool.n_filled, len(pages.pages), pages.n_bytes) == (2, 2, 200)


def test_pages_stay_in_place_when_a_sequence_grows() -> None:
    pages = page_list(PagePool(5, 100), 4)
    pages.cover(40)
    first = list(pages.pages)
    pages.cover(100)
    assert pages.pages[:2] == first
    pages.cover(50)
    assert len(pages.pages) == 4


def test_a_sequence_cannot_outgrow_its_promise() -> None:
    pages = page_list(PagePool(5, 100), 1)
    with pytest.raises(AssertionError, match="outgrew its promise"):
        pages.cover(33)


def test_released_pages_serve_others_and_a_second_release_does_nothing() -> None:
    pool = PagePool(2, 100)
    pages = page_list(pool, 2)
    pages.cover(64)
    pages.release()
    pages.release()
    assert (pool.n_filled, pool.n_promised, pages.n_bytes) == (0, 0, 0)
    again = page_list(pool, 2)
    again.cover(64)
    assert sorted(again.pages) == [0, 1]


def test_low_pages_are_used_first_so_that_high_ones_stay_untouched_memory() -> None:
    pool = PagePool(100, 1)
    for _ in range(3):
        pages = page_list(pool, 3)
        pages.cover(96)
        assert sorted(pages.pages) == [0, 1, 2]
        pages.release()


def test_a_page_that_is_handed_over_is_no_longer_released_with_its_sequence() -> None:
    pool = PagePool(4, 1)
    pages = page_list(pool, 3)
    pages.cover(64)
    own = pages.hand_over(pages.pages[0])
    assert (own, pool.n_promised) == (pages.pages[0], 2)
    pages.release()
    assert (pool.n_filled, pool.n_promised) == (1, 0)


def test_retired_pages_are_the_highest_free_ones_and_nobody_gets_them() -> None:
    pool = PagePool(6, 1)
    pages = page_list(pool, 2)
    pages.cover(64)
    assert pool.retire(3, 0) == 3
    assert (pool.retired, pool.n_pages, pool.n_filled) == ((3, 4, 5), 3, 2)
    assert [pool.promise(n) for n in (2, 1)] == [False, True]
    assert pool.take() == 2


def test_pages_that_live_requests_were_promised_are_never_retired() -> None:
    pool = PagePool(6, 1)
    pages = page_list(pool, 4)
    assert pool.retire(6, 0) == 2
    pages.cover(4 * 32)
    assert sorted(pages.pages) == [0, 1, 2, 3]
    assert pool.retire(1, 0) == 0


@pytest.mark.parametrize(("least", "n_retired"), [(0, 6), (2, 4), (6, 0), (9, 0)])
def test_so_many_pages_as_are_told_stay(least: int, n_retired: int) -> None:
    assert PagePool(6, 1).retire(99, least) == n_retired


def test_free_pages_are_retired_before_those_that_are_kept_for_reuse() -> None:
    pool = PagePool(4, 1)
    kept = [pool.take(), pool.take()]

    def give_up() -> bool:
        if kept:
            pool.give_back(kept.pop())
            return True
        return False

    pool.give_up = give_up
    assert pool.retire(2, 0) == 2
    assert len(kept) == 2
    assert pool.retire(1, 0) == 1
    assert (len(kept), pool.n_pages, pool.n_filled) == (1, 1, 1)


def test_restored_pages_are_the_lowest_and_serve_again() -> None:
    pool = PagePool(6, 1)
    pool.retire(4, 0)
    assert pool.restore(3) == 3
    assert (pool.retired, pool.n_pages) == ((5,), 5)
    assert [pool.take() for _ in range(5)] == [0, 1, 2, 3, 4]
    assert pool.restore(9) == 1
    assert (pool.retired, pool.n_pages) == ((), 6)
