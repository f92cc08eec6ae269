"""TextAssembler: ids and text stay together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sipd.text.assembler import TextAssembler, TextDelta
from sipd.text.detokenizer import Detokenizer
from sipd.text.stop import StopMatcher
from tests.unit.text.samples import IM_END, gpt2

GPT2 = gpt2()


def _assembler(*strings: str) -> TextAssembler:
    return TextAssembler(Detokenizer(GPT2), StopMatcher(strings))


def _byte_ids(text: str) -> list[int]:
    return [6 + byte for byte in text.encode()]


def test_a_token_whose_text_is_held_back_waits_with_it() -> None:
    s, t, a = _byte_ids("sta")
    assembler = _assembler("stop")
    assert assembler.push(s) == TextDelta("", ())
    assert assembler.push(t) == TextDelta("", ())
    assert assembler.push(a) == TextDelta("sta", (s, t, a))


def test_a_token_that_is_held_back_in_part_is_not_split() -> None:
    the, x = 264, _byte_ids("x")[0]
    assembler = _assembler("ex!")
    assert assembler.push(the) == TextDelta("", ())
    assert assembler.push(x) == TextDelta("", ())
    assert assembler.flush() == TextDelta("thex", (the, x))


def test_a_match_ends_the_text_and_gives_all_ids() -> None:
    a, s, t = _byte_ids("ast")
    assembler = _assembler("st")
    assert assembler.push(a) == TextDelta("a", (a,))
    assert assembler.push(s) == TextDelta("", ())
    assert assembler.push(t) == TextDelta("", (s, t), "st")
    assert assembler.push(a) == TextDelta("", (), "st")
    assert assembler.flush() == TextDelta("", (), "st")


def test_the_bytes_of_a_character_come_together() -> None:
    first, second = _byte_ids("é")
    assembler = _assembler()
    assert not assembler.push(first)
    assert assembler.push(second) == TextDelta("é", (first, second))


def test_a_token_without_text_comes_with_the_next_text_or_at_the_end() -> None:
    (a,) = _byte_ids("a")
    assembler = _assembler()
    assert not assembler.push(IM_END)
    assert assembler.push(a) == TextDelta("a", (IM_END, a))
    assert not assembler.push(IM_END)
    assert assembler.flush() == TextDelta("", (IM_END,))


def test_an_unfinished_character_comes_at_the_end() -> None:
    first = _byte_ids("é")[0]
    assembler = _assembler()
    assembler.push(first)
    assert assembler.flush() == TextDelta("\ufffd", (first,))


@given(
    st.lists(st.integers(0, GPT2.vocab_size - 1)), st.lists(st.sampled_from(["th", "he a", "\ufffd", "s>"]), max_size=3)
)
def test_the_ids_so_far_are_exactly_those_behind_the_text_so_far(ids: list[int], strings: list[str]) -> None:
    assembler = _assembler(*strings)
    given_ids: list[int] = []
    text, matched = "", None
    for token_id in ids:
        delta = assembler.push(token_id)
        text += delta.text
        given_ids += delta.ids
        matched = delta.matched
        if matched is not None:
            break
        again = Detokenizer(GPT2)
        assert "".join(map(again.push, given_ids)) == text
    if matched is None:
        delta = assembler.flush()
        text += delta.text
        given_ids += delta.ids
        assert given_ids == ids
        if delta.matched is None:
            assert text == GPT2.decode(ids)
    else:
        assert given_ids == ids[: len(given_ids)]
        assert GPT2.decode(given_ids).startswith(text)
