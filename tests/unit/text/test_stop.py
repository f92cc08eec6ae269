"""StopMatcher: any split of a text gives the same result."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sipd.errors import InvalidRequest
from sipd.text.stop import StopMatcher

_TEXT = st.text(alphabet="abc\n", max_size=40)


def _expected(text: str, strings: list[str]) -> tuple[str, str | None]:
    """Return the text before the stop string that is complete first, and that string; the longest of several."""
    for end in range(1, len(text) + 1):
        ending = [string for string in strings if text[:end].endswith(string)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(
    pieces=st.lists(_TEXT, max_size=12),
    strings=st.lists(st.text(alphabet="abc\n", min_size=1, max_size=6), max_size=5),
)
def test_any_split_of_a_text_emits_what_is_before_the_first_stop(pieces: list[str], strings: list[str]) -> None:
    matcher = StopMatcher(strings)
    emitted, matched = "", None
    for piece in pieces:
        delta, matched = matcher.push(piece)
        emitted += delta
    emitted += matcher.flush()
    assert (emitted, matched) == _expected("".join(pieces), strings)


@given(text=_TEXT, strings=st.lists(st.text(alphabet="abc", min_size=1, max_size=6), min_size=1, max_size=5))
def test_only_the_start_of_a_stop_string_is_held_back(text: str, strings: list[str]) -> None:
    emitted, matched = (matcher := StopMatcher(strings)).push(text)
    if matched is None:
        held = matcher.flush()
        assert emitted + held == text
        assert held == "" or any(string.startswith(held) and string != held for string in strings)


def test_a_stop_string_over_three_pushes_is_found_and_not_leaked() -> None:
    matcher = StopMatcher(["STOP"])
    assert [matcher.push(piece) for piece in ("a S", "T", "OP b")] == [("a ", None), ("", None), ("", "STOP")]
    assert matcher.push("more") == ("", "STOP")
    assert matcher.flush() == ""


def test_a_false_start_is_released() -> None:
    matcher = StopMatcher(["STOP"])
    assert matcher.push("ST") == ("", None)
    assert matcher.push("AR") == ("STAR", None)


def test_the_stop_string_itself_is_emitted_on_request() -> None:
    assert StopMatcher(["b"], include_stop=True).push("abc") == ("ab", "b")


def test_without_stop_strings_nothing_is_held_back() -> None:
    assert StopMatcher([]).push("text") == ("text", None)


@pytest.mark.parametrize(
    ("strings", "message"),
    [
        ([""], "string 0 is empty"),
        (["a"] * 17, "found 17 strings"),
        (["a", "é" * 129], "string 1 has 258 bytes"),
    ],
)
def test_bad_stop_strings_are_refused_by_field(strings: list[str], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        StopMatcher(strings)
    assert caught.value.field == "stop.strings"
