"""Drafts from a request's own tokens, against a search that looks at every place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sipd.engine.prompt_lookup import LONGEST, SHORTEST, PromptLookup


def lookup(*ids: int) -> PromptLookup:
    made = PromptLookup()
    made.extend(ids)
    return made


def test_what_followed_the_last_tokens_before_is_drafted() -> None:
    assert lookup(1, 2, 3, 4, 5, 9, 1, 2).draft(3) == [3, 4, 5]


def test_no_more_is_drafted_than_was_asked_for() -> None:
    assert lookup(1, 2, 3, 4, 5, 9, 1, 2).draft(1) == [3]


def test_tokens_that_never_stood_together_give_no_draft() -> None:
    assert lookup(1, 2, 3, 4, 2, 1, 3).draft(4) == []


def test_a_short_loop_is_drafted_round_and_round() -> None:
    assert lookup(9, 1, 2, 3, 1, 2, 3, 1, 2, 3).draft(7) == [1, 2, 3, 1, 2, 3, 1]


def test_one_token_alone_is_no_reason_to_draft() -> None:
    assert lookup(1, 2, 3, 7, 1).draft(4) == []


@pytest.mark.parametrize("ids", [(), (1,), (1, 1), (1, 2)])
def test_too_few_tokens_give_no_draft(ids: tuple[int, ...]) -> None:
    assert lookup(*ids).draft(4) == []


def test_the_longer_match_wins_over_the_later_one() -> None:
    assert lookup(5, 1, 2, 3, 40, 6, 2, 3, 50, 1, 2, 3).draft(1) == [40]


def test_the_latest_of_equal_matches_wins() -> None:
    assert lookup(1, 2, 30, 1, 2, 31, 1, 2).draft(1) == [31]


def test_a_run_of_one_token_goes_on() -> None:
    assert lookup(7, 7, 7, 7).draft(4)[:1] == [7]


@pytest.mark.parametrize(
    "ids", [(0x01020304, 0x05060708, 9, 0x02030401, 0x06070805, 11), (0, 256, 1, 65536, 0, 256 * 256 * 256, 1, 0)]
)
def test_bytes_that_are_equal_across_the_border_of_a_token_are_no_match(ids: tuple[int, ...]) -> None:
    assert lookup(*ids).draft(4) == naive(ids, 4)


def test_the_largest_token_id_is_found_again() -> None:
    top = 2**32 - 1
    assert lookup(top, top - 1, 5, top, top - 1).draft(1) == [5]


def naive(ids: tuple[int, ...], n: int) -> list[int]:
    for length in range(LONGEST, SHORTEST - 1, -1):
        for at in range(len(ids) - length - 1, -1, -1):
            if ids[at : at + length] == ids[len(ids) - length :]:
                following = ids[at + length : at + length + n]
                return [following[index % len(following)] for index in range(n)]
    return []


def test_a_match_is_found_that_overlaps_one_across_the_border_of_a_token() -> None:
    ones, begins_with_ones = 0x01010101, 0x99010101
    assert lookup(ones, ones, begins_with_ones, 5, ones, ones).draft(2) == [begins_with_ones, 5]


@given(
    ids=st.lists(st.sampled_from((0, 1, 2, 256, 257, 65536, 1 << 24, (1 << 24) + 1)), max_size=40).map(tuple),
    n=st.integers(1, 8),
    cut=st.integers(0, 40),
)
def test_drafts_are_those_of_a_search_of_every_place_however_the_tokens_came(
    ids: tuple[int, ...], n: int, cut: int
) -> None:
    made = PromptLookup()
    made.extend(ids[:cut])
    made.extend(ids[cut:])
    assert len(made) == len(ids)
    assert made.draft(n) == naive(ids, n)
