"""How many tokens are drafted: where it pays, and what acceptance is remembered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sipd.engine.pace import Pace
from sipd.engine.speculation import Acceptance, Drafting, draft_length

MAX_ROWS = 512


def machine(row_s: float, storage_s: float) -> Pace:
    pace = Pace(None, MAX_ROWS)
    pace.observe(1, row_s, storage_s)
    pace.observe(101, 101 * row_s, storage_s)
    return pace


STORAGE_BOUND = machine(0.001, 1.0)
COMPUTE_BOUND = machine(1.0, 0.001)


def test_rows_that_storage_hides_are_all_used() -> None:
    assert draft_length(0.5, 16, STORAGE_BOUND, 1) == 16


def test_nothing_is_drafted_where_every_row_costs_a_pass() -> None:
    assert draft_length(0.9, 16, COMPUTE_BOUND, 1) == 0


def test_drafts_end_where_compute_exceeds_storage() -> None:
    assert draft_length(0.5, 16, machine(0.1, 1.0), 1) == 9


def test_rows_of_others_leave_fewer_free_ones() -> None:
    assert draft_length(0.5, 16, machine(0.1, 1.0), 8) == 2


def test_a_few_are_drafted_while_nothing_is_known() -> None:
    assert [draft_length(0.5, most, Pace(None, MAX_ROWS), 1) for most in (0, 2, 16)] == [0, 2, 4]


def test_drafts_that_take_longer_to_make_than_a_pass_are_not_made() -> None:
    assert draft_length(0.9, 16, STORAGE_BOUND, 1, draft_s=1.0) == 0
    assert draft_length(0.9, 16, STORAGE_BOUND, 1, draft_s=0.01) > 4


@given(
    rates=st.tuples(st.floats(0.0, 0.98), st.floats(0.0, 0.98)),
    row_s=st.floats(1e-4, 1.0),
    storage_s=st.floats(1e-4, 1.0),
    n_rows=st.integers(1, 8),
    draft_s=st.floats(0.0, 0.5),
)
def test_drafts_that_are_right_more_often_are_never_fewer(
    rates: tuple[float, float], row_s: float, storage_s: float, n_rows: int, draft_s: float
) -> None:
    pace = machine(row_s, storage_s)
    low, high = (draft_length(rate, 16, pace, n_rows, draft_s) for rate in sorted(rates))
    assert 0 <= low <= high <= 16


def test_a_first_guess_is_made_before_anything_is_known() -> None:
    assert Acceptance().rate == pytest.approx(0.7)


def test_drafts_after_the_first_wrong_one_were_not_tried() -> None:
    one, other = Acceptance(), Acceptance()
    one.add(2, 3)
    other.add(2, 16)
    assert one == other


def test_drafts_that_are_always_right_are_never_certain() -> None:
    acceptance = Acceptance()
    for _ in range(100):
        acceptance.add(16, 16)
    assert acceptance.rate == pytest.approx(0.98)


def test_drafts_that_are_never_right_end_near_nothing() -> None:
    acceptance = Acceptance()
    for _ in range(40):
        acceptance.add(0, 4)
    assert acceptance.rate < 0.01


def test_late_drafts_weigh_more_than_early_ones() -> None:
    acceptance = Acceptance()
    for _ in range(50):
        acceptance.add(0, 1)
    for _ in range(10):
        acceptance.add(1, 1)
    assert acceptance.rate > 0.75


@given(
    st.lists(st.tuples(st.integers(0, 16), st.integers(1, 16)).map(lambda pair: (min(pair), max(pair))), max_size=60)
)
def test_a_rate_is_a_chance_whatever_happened(history: list[tuple[int, int]]) -> None:
    acceptance = Acceptance()
    for n_accepted, n_drafted in history:
        acceptance.add(n_accepted, n_drafted)
    assert 0.0 <= acceptance.rate <= 0.98


def drafting(*ids: int) -> Drafting:
    made = Drafting()
    made.lookup.extend(ids)
    return made


def test_drafts_come_from_the_tokens_so_far() -> None:
    assert drafting(1, 2, 3, 4, 5, 1, 2).propose(2, STORAGE_BOUND, 1) == (3, 4)


def test_no_row_means_no_draft() -> None:
    assert drafting(1, 2, 3, 1, 2).propose(0, STORAGE_BOUND, 1) == ()


def test_drafts_that_did_not_pay_are_tried_again_now_and_then_one_at_a_time() -> None:
    made = drafting(1, 2, 3, 4, 5, 1, 2)
    proposed = [made.propose(4, COMPUTE_BOUND, 1) for _ in range(75)]
    assert set(proposed) == {(), (3,)}
    assert 2 <= proposed.count((3,)) <= 4


def test_what_became_of_drafts_counts_for_whoever_made_them() -> None:
    made = drafting(1, 2)
    made.verified(0, 4)
    assert made.of_lookup.rate < 0.7
    assert made.of_model.rate == pytest.approx(0.7)
    made.is_from_model = True
    made.verified(0, 4)
    assert made.of_model == made.of_lookup


def test_no_drafts_teach_nothing() -> None:
    made = drafting(1, 2)
    made.verified(0, 0)
    assert made.of_lookup == Acceptance()
