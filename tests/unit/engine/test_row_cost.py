"""What rows and positions cost: recovered from passes, kept when passes do not tell, inverted into rows."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sipd.engine.row_cost import RowCost

costs = st.floats(1e-6, 1e-1)


def learned(row_s: float, position_s: float, *passes: tuple[int, int]) -> RowCost:
    """Costs after (rows, positions) passes on a machine of these costs."""
    cost = RowCost()
    for n_rows, n_positions in passes:
        cost.add(n_rows, n_positions, n_rows * row_s + n_positions * position_s)
    return cost


@given(row_s=costs, position_s=costs)
def test_two_different_passes_tell_both_costs(row_s: float, position_s: float) -> None:
    cost = learned(row_s, position_s, (64, 64 * 32), (512, 512 * 320), (100, 100 * 1500))
    assert cost.row_s == pytest.approx(row_s, rel=1e-3, abs=1e-7 + 1e-3 * position_s)
    assert cost.position_s == pytest.approx(position_s, rel=1e-3)


def test_the_first_pass_is_put_down_to_its_rows() -> None:
    cost = learned(0.001, 1e-6, (100, 5000))
    assert cost.row_s == pytest.approx(0.00105)
    assert cost.position_s == 0.0


def test_passes_alike_leave_the_positions_cost_as_it_was() -> None:
    cost = learned(0.001, 1e-6, (100, 5000), (100, 100_000))
    for _ in range(60):
        cost.add(100, 100_000, 0.2)
    assert cost.position_s == pytest.approx(1e-6)
    for _ in range(30):
        cost.add(100, 100_000, 0.4)  # the machine has become slower
    assert 100 * cost.row_s + 100_000 * cost.position_s == pytest.approx(0.4, rel=1e-2)


def test_a_longer_text_that_took_less_time_has_no_negative_cost() -> None:
    cost = RowCost()
    cost.add(100, 1000, 1.0)
    cost.add(100, 100_000, 0.1)
    assert cost.row_s >= 0.0
    assert cost.position_s == 0.0


@given(
    row_s=costs, position_s=st.one_of(st.just(0.0), costs), first=st.integers(0, 100_000), seconds=st.floats(0.0, 10)
)
def test_the_rows_of_a_time_take_that_time(row_s: float, position_s: float, first: int, seconds: float) -> None:
    n = RowCost(row_s, position_s, True).rows_in(seconds, first)
    assert n * (row_s + position_s * first) + position_s * n * n / 2 == pytest.approx(seconds, rel=1e-6, abs=1e-12)


def test_rows_that_cost_nothing_are_not_counted() -> None:
    assert RowCost().rows_in(1.0, 0) == math.inf
    assert RowCost().rows_in(-1.0, 0) == 0.0


passes = st.lists(st.tuples(st.integers(1, 512), st.integers(0, 10**6), st.floats(0.0, 100.0)), max_size=30)


@given(passes=passes)
def test_no_passes_give_a_negative_or_undefined_cost(passes: list[tuple[int, int, float]]) -> None:
    cost = RowCost()
    for each in passes:
        cost.add(*each)
    assert 0.0 <= cost.row_s < math.inf
    assert 0.0 <= cost.position_s < math.inf
