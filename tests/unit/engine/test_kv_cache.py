"""Pages of the KV cache: reservations, growth on demand, and what is given back."""

from __future__ import annotations

import pytest

from sipd.engine.kv_cache import PagePool, pages_for


@pytest.mark.parametrize(("n_positions", "n_pages"), [(0, 0), (1, 1), (32, 1), (33, 2), (64, 2), (65, 3)])
def test_pages_hold_32_positions(n_positions: int, n_pages: int) -> None:
    assert pages_for(n_positions) == n_pages


def test_reservations_never_exceed_the_pool() -> None:
    pool = PagePool(5, 100)
    assert pool.reserve(3) is not None
    assert pool.reserve(3) is None
    assert pool.reserve(2) is not None
    assert pool.reserve(1) is None


def test_a_reservation_takes_no_page_before_it_is_needed() -> None:
    pool = PagePool(5, 100)
    pages = pool.reserve(3)
    assert pages is not None
    assert pool.n_in_use == 0
    pages.cover(33)
    assert (pool.n_in_use, len(pages.pages), pages.n_bytes) == (2, 2, 200)


def test_pages_stay_in_place_when_a_sequence_grows() -> None:
    pages = PagePool(5, 100).reserve(4)
    assert pages is not None
    pages.cover(40)
    first = list(pages.pages)
    pages.cover(100)
    assert pages.pages[:2] == first
    pages.cover(50)
    assert len(pages.pages) == 4


def test_a_sequence_cannot_outgrow_its_reservation() -> None:
    pages = PagePool(5, 100).reserve(1)
    assert pages is not None
    with pytest.raises(AssertionError, match="outgrew its reservation"):
        pages.cover(33)


def test_released_pages_serve_others_and_a_second_release_does_nothing() -> None:
    pool = PagePool(2, 100)
    pages = pool.reserve(2)
    assert pages is not None
    pages.cover(64)
    pages.release()
    pages.release()
    assert (pool.n_in_use, pages.n_bytes) == (0, 0)
    again = pool.reserve(2)
    assert again is not None
    again.cover(64)
    assert sorted(again.pages) == [0, 1]


def test_low_pages_are_used_first_so_that_high_ones_stay_untouched_memory() -> None:
    pool = PagePool(100, 1)
    for _ in range(3):
        pages = pool.reserve(3)
        assert pages is not None
        pages.cover(96)
        assert sorted(pages.pages) == [0, 1, 2]
        pages.release()
