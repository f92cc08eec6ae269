"""The cost model: what is known after which passes, and the rows that it allows while others decode."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sipd.engine.pace import FREE_GAP_S, GAP_GROWTH, MIN_CHUNK, UNKNOWN_CHUNK, Pace

MAX_ROWS = 512


def seen(*passes: tuple[int, float, float]) -> Pace:
    """A pace that has seen (rows, compute seconds, storage seconds) passes."""
    pace = Pace(None, MAX_ROWS)
    for n_rows, compute_s, storage_s in passes:
        pace.observe(n_rows, compute_s, storage_s)
    return pace


def linear(fixed_s: float, row_s: float, storage_s: float) -> Pace:
    """A machine of which everything is known."""
    return seen((1, fixed_s + row_s, storage_s), (101, fixed_s + 101 * row_s, storage_s))


def test_nothing_is_known_before_the_first_pass() -> None:
    pace = seen()
    assert (pace.row_s, pace.pass_s(1)) == (None, None)
    assert pace.row_cap(3) == 3 + UNKNOWN_CHUNK


@pytest.mark.parametrize("n_rows", [1, 16, 32, 500])
def test_one_kind_of_pass_is_not_enough_to_draw_a_line(n_rows: int) -> None:
    pace = seen(*[(n_rows, 0.5, 0.1)] * 9)
    assert (pace.row_s, pace.pass_s(8)) == (None, None)
    assert pace.row_cap(1) == 1 + UNKNOWN_CHUNK


@pytest.mark.parametrize("n_rows", [17, 31])
def test_passes_between_few_and_many_rows_say_nothing(n_rows: int) -> None:
    assert seen((1, 0.01, 0.1), (n_rows, 9.0, 9.0)).row_s is None
    assert seen((64, 0.01, 0.1), (n_rows, 9.0, 9.0)).row_s is None


def test_a_row_costs_the_slope_between_few_and_many_rows() -> None:
    pace = linear(0.02, 0.003, 0.0)
    assert pace.row_s == pytest.approx(0.003)
    assert pace.pass_s(51) == pytest.approx(0.02 + 51 * 0.003)


def test_the_order_of_passes_does_not_matter() -> None:
    prompt_first = seen((101, 0.323, 0.0), (1, 0.023, 0.0))
    assert prompt_first.row_s == pytest.approx(0.003)
    assert prompt_first.row_s == seen((1, 0.023, 0.0), (101, 0.323, 0.0)).row_s


def test_a_wrong_cost_is_mended_by_the_small_passes_that_it_led_to() -> None:
    pace = linear(0.0, 0.001, 0.0)
    pace.observe(64, 0.5, 0.0, 64 * 1000)  # a hiccup
    floor = pace.row_cap(1, 4000)
    for first in range(4000, 4400, 20):
        pace.observe(20, 0.02, 0.0, 20 * first)
    assert floor < 30
    assert pace.row_cap(1, 4400) > 80


def test_the_positions_of_decoders_are_not_put_down_to_prompts() -> None:
    pace = Pace(None, MAX_ROWS)
    pace.observe(8, 0.008 + 8 * 4000 * 1e-6, 0.0, 8 * 4000)
    for first in (0, 1000):
        pace.observe(72, 0.072 + 1e-6 * (8 * 4000 + 64 * first), 0.0, 8 * 4000 + 64 * first)
    assert pace.row_s == pytest.approx(0.001)
    assert pace._cost.position_s == pytest.approx(1e-6)


def test_a_pass_lasts_as_long_as_storage_until_compute_takes_longer() -> None:
    pace = linear(0.0, 0.01, 1.0)
    assert pace.pass_s(1) == pytest.approx(1.0)
    assert pace.pass_s(100) == pytest.approx(1.0)
    assert pace.pass_s(150) == pytest.approx(1.5)


def test_passes_of_many_rows_are_no_measure_of_storage() -> None:
    pace = seen((1, 0.01, 0.2), (400, 4.0, 4.0))
    assert pace.pass_s(1) == pytest.approx(0.2)


def test_rows_behind_storage_are_free_and_the_gap_grows_no_further_than_promised() -> None:
    pace = linear(0.0, 0.01, 1.0)
    assert pace.row_cap(1) == pytest.approx(GAP_GROWTH * 100, abs=1)


def test_a_gap_that_nobody_minds_is_used_on_a_fast_machine() -> None:
    pace = linear(0.0, 0.001, 0.001)
    assert pace.row_cap(1) == pytest.approx(FREE_GAP_S / 0.001, abs=1)


def test_a_prompt_goes_on_on_a_slow_machine() -> None:
    assert linear(0.0, 1.0, 0.1).row_cap(4) == 4 + MIN_CHUNK


def test_a_cap_never_exceeds_the_rows_of_a_pass() -> None:
    assert linear(0.0, 1e-6, 10.0).row_cap(1) == MAX_ROWS
    assert Pace(None, 8).row_cap(4) == 8
    assert Pace(1000, 8).row_cap(4) == 8


@pytest.mark.parametrize(("configured", "n_decoders", "cap"), [(20, 4, 20), (1, 4, 5), (4, 4, 5), (5, 4, 5), (1, 8, 8)])
def test_a_configured_cap_holds_but_leaves_prompts_a_row(configured: int, n_decoders: int, cap: int) -> None:
    pace = Pace(configured, 8 if n_decoders == 8 else MAX_ROWS)
    assert pace.row_cap(n_decoders) == cap


def test_many_rows_that_took_less_time_than_few_break_nothing() -> None:
    pace = seen((10, 3.0, 0.0), (100, 0.1, 0.0))
    assert pace.row_s == pytest.approx(1e-9)
    assert pace.row_cap(1) == MAX_ROWS


def test_a_pass_never_takes_no_time() -> None:
    pace = seen((16, 0.0, 0.0), (32, 1.0, 0.0))
    n_seconds = pace.pass_s(1)
    assert n_seconds is not None
    assert n_seconds > 0


def test_a_change_of_the_machine_is_felt_after_some_passes() -> None:
    pace = linear(0.0, 0.001, 0.1)
    for _ in range(20):
        pace.observe(1, 0.001, 0.5)
    assert pace.pass_s(1) == pytest.approx(0.5, rel=0.02)


def test_one_slow_pass_does_not_change_the_picture() -> None:
    pace = linear(0.0, 0.001, 0.1)
    pace.observe(1, 0.001, 1.1)
    assert pace.pass_s(1) == pytest.approx(0.3)


def test_rows_far_into_a_text_cost_more_and_get_a_smaller_cap() -> None:
    pace = linear(0.0, 0.001, 0.0)
    for first in (0, 512):
        pace.observe(101, 101 * 0.001 + 1e-6 * 101 * first, 0.0, 101 * first)
    assert pace.row_s == pytest.approx(0.001)
    assert pace.row_cap(1, 0) == pytest.approx(100, abs=5)
    assert pace.row_cap(1, 2000) == pytest.approx(100 / 3, abs=2)


def test_what_storage_does_not_hide_counts_against_the_gap() -> None:
    pace = linear(0.0, 0.01, 1.0)
    hidden = pace.row_cap(1)
    pace.observe(101, 1.01, 1.0, 0, 1.01 + 0.5)  # half of the lower one was not hidden
    assert hidden == pytest.approx(125, abs=1)
    assert pace.row_cap(1) == pytest.approx(50, abs=2)
    pace = linear(0.0, 0.01, 1.0)
    pace.observe(101, 1.01, 1.0, 0, 1.01 + 0.1)
    assert pace.row_cap(1) == pytest.approx(115, abs=1)


def test_a_pass_that_hid_everything_leaves_the_cap_as_it_was() -> None:
    pace = linear(0.0, 0.01, 1.0)
    cap = pace.row_cap(1)
    pace.observe(101, 1.01, 1.0, 0, 1.01)
    assert pace.row_cap(1) == cap


seconds = st.floats(0.0, 100.0)


@given(passes=st.lists(st.tuples(st.integers(1, MAX_ROWS), seconds, seconds), max_size=20), n=st.integers(1, 64))
def test_any_passes_give_a_usable_cap(passes: list[tuple[int, float, float]], n: int) -> None:
    pace = seen(*passes)
    assert n + MIN_CHUNK <= pace.row_cap(n) <= MAX_ROWS
    n_seconds = pace.pass_s(n)
    assert n_seconds is None or n_seconds > 0


@given(few=seconds, many=seconds, storage=seconds, n=st.integers(1, 400))
def test_a_pass_of_more_rows_never_takes_less_time(few: float, many: float, storage: float, n: int) -> None:
    pace = seen((8, few, storage), (64, many, storage))
    one, more = pace.pass_s(n), pace.pass_s(n + 1)
    assert one is not None
    assert more is not None
    assert one <= more
