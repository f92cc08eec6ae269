"""Special tokens: which texts could take part in one."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sipd.text.special_tokens import SpecialTokens
from sipd.text.vocabulary import SpecialToken, TokenType

TOKENS = SpecialTokens(
    [
        SpecialToken(0, "<|x|>", TokenType.CONTROL),
        SpecialToken(1, "[ab]", TokenType.CONTROL),
        SpecialToken(2, "b<", TokenType.USER_DEFINED),
        SpecialToken(3, "|x", TokenType.USER_DEFINED),
        SpecialToken(4, "<yyyz>", TokenType.CONTROL),
    ]
)
TEXTS = st.text("<|x>[ab] c", max_size=12)
# Most texts of these characters may join; these have the others near their borders
QUIET_BORDERS = st.tuples(st.text("ac |[b", min_size=5, max_size=5), TEXTS, st.text("ac >]x", min_size=5, max_size=5))
QUIET = QUIET_BORDERS.map("".join) | st.text("ac ", max_size=3)


@given(TEXTS, QUIET, TEXTS)
def test_text_that_may_not_join_is_part_of_no_control_token(left: str, text: str, right: str) -> None:
    assume(text and not TOKENS.may_join(text))
    assume(all(TOKENS.hidden_id(piece) is None for piece, _ in TOKENS.spans(text, parse_special=True)))
    at = 0
    for piece, _ in TOKENS.spans(left + text + right, parse_special=True):
        is_beside = at + len(piece) <= len(left) or at >= len(left) + len(text)
        assert is_beside or TOKENS.hidden_id(piece) is None
        at += len(piece)


@pytest.mark.parametrize("text", ["c <", "c<|", "c<yyyz", "> c", "|> c", "yyyz>c", "a", "ab", "[", "]"])
def test_text_that_a_control_token_could_cross_may_join(text: str) -> None:
    assert TOKENS.may_join(text)


@pytest.mark.parametrize("text", ["c", "hello there", "ccccc < ccccc", "ccccc > ccccc"])
def test_text_that_no_token_reaches_may_not_join(text: str) -> None:
    assert not TOKENS.may_join(text)


def test_without_special_tokens_nothing_joins() -> None:
    assert not SpecialTokens([]).may_join("a <")
