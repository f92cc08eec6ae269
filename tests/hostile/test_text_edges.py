"""Text edges under attack: random metadata, awkward text, and work that stays linear."""

from __future__ import annotations

import copy
from itertools import islice
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sipd.errors import TokenizerError
from sipd.text.chunks import CHUNK_CHARS, chunks
from sipd.text.pre_tokenizer import PRE_TOKENIZERS
from sipd.text.special_tokens import SpecialTokens
from sipd.text.stop import StopMatcher
from sipd.text.tokenizer import Tokenizer
from sipd.text.vocabulary import SpecialToken, TokenType
from tests.unit.text.samples import KEY, gpt2, gpt2_metadata, spm, spm_metadata

_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**40), 2**40), st.floats(), st.text(max_size=5), st.binary(max_size=3)
)
_ARRAYS = ("tokens", "token_type", "merges", "scores")
_AWKWARD = [
    "\x00",
    "\ufeff",
    "\u202e",
    "\u2581",
    "\ufdd0",
    "\ufffe",
    "\u0301" * 50,
    "\U0010ffff",
    "\r\n" * 9,
    "\u2028",
    "'\u017f",
]


@pytest.mark.parametrize("build", [gpt2_metadata, spm_metadata])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_changed_metadata_load_or_are_refused_by_name(build: object, data: st.DataObject) -> None:
    metadata = copy.deepcopy(build())  # type: ignore[operator]
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from(sorted(metadata)))
        value = metadata[key]
        if isinstance(value, list) and value and key.removeprefix(KEY) in _ARRAYS:
            index = data.draw(st.integers(0, len(value) - 1))
            value[index] = data.draw(st.one_of(_VALUES, st.sampled_from(value)))
        else:
            metadata[key] = data.draw(_VALUES)
    try:
        tokenizer = Tokenizer.from_gguf(metadata)
    except TokenizerError:
        return
    ids = tokenizer.encode("the</s> é <|im_end|>", add_special=True, parse_special=False)
    assert all(0 <= token_id < tokenizer.vocab_size for token_id in ids)
    tokenizer.decode(range(tokenizer.vocab_size))


@pytest.mark.parametrize("text", _AWKWARD)
def test_awkward_text_decodes_to_itself(text: str) -> None:
    for tokenizer in (gpt2(), spm()):
        expected = text.replace("\u2581", " ") if tokenizer.strips_first_space else text
        assert tokenizer.decode(tokenizer.encode(f"a{text}b", add_special=True, parse_special=False)) == f"a{expected}b"


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
@pytest.mark.parametrize("unit", [" ", "\n", "A", "a", "!", "9", "日", " \n", "Aa"])
def test_no_pre_tokenizer_gives_up_on_a_long_run(name: str, unit: str) -> None:
    tokenizer = gpt2(pre=name)
    text = unit * (10_000 // len(unit))
    assert tokenizer.decode(tokenizer.encode(text, add_special=False, parse_special=False)) == text


def test_many_special_tokens_are_searched_by_prefix_and_not_one_by_one() -> None:
    tokens = [SpecialToken(index, f"<|reserved_{index}|>", TokenType.CONTROL) for index in range(5_000)]
    special = SpecialTokens(tokens)
    pattern = special._all
    assert pattern is not None
    assert pattern.pattern.count("reserved_") == 1
    text = "<|reserved_4999|>" + "<|reserved_" * 20_000
    assert next(special.split(text, parse_special=True)) == 4999
    assert list(islice(special.split("<|reserved_49|>", parse_special=True), 2)) == [49]


def test_a_long_text_of_words_is_encoded_in_chunks_of_bounded_size() -> None:
    text = "word " * 200_000
    assert max(map(len, chunks(text))) < CHUNK_CHARS + 10


def test_a_stop_automaton_holds_a_bounded_number_of_states_and_steps_back_at_most_as_often_as_forward() -> None:
    matcher = StopMatcher([letter * 255 + "!" for letter in "abcdefghijklmnop"])
    assert len(matcher._next) == 16 * 256 + 1
    steps = 0
    original = matcher._fallback

    class Counting(list[int]):
        def __getitem__(self, index: Any) -> Any:  # noqa: ANN401 - the list's own overloads
            nonlocal steps
            steps += 1
            return original[index]

    matcher._fallback = Counting(original)
    text = "a" * 10_000 + "ab" * 10_000
    emitted, matched = matcher.push(text)
    assert matched is None
    assert emitted + matcher.flush() == text
    assert steps <= len(text)
