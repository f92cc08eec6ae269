"""Detokenizer: deltas are valid UTF-8 and join to the whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sipd.text.detokenizer import Detokenizer
from sipd.text.tokenizer import Tokenizer
from tests.unit.text.samples import IM_END, gpt2, spm

GPT2 = gpt2()
SPM = spm()
_FIRST_BYTE = 6


def _push_bytes(data: bytes) -> tuple[list[str], str]:
    detokenizer = Detokenizer(GPT2)
    return [detokenizer.push(_FIRST_BYTE + byte) for byte in data], detokenizer.flush()


def test_a_character_comes_with_its_last_byte() -> None:
    assert _push_bytes("a🙂".encode()) == (["a", "", "", "", "🙂"], "")


def test_an_unfinished_character_becomes_one_replacement_at_the_end() -> None:
    assert _push_bytes("🙂".encode()[:3]) == (["", "", ""], "\ufffd")


def test_an_impossible_byte_is_replaced_at_once_and_the_stream_goes_on() -> None:
    assert _push_bytes(b"\xffa") == (["\ufffd", "a"], "")
    assert _push_bytes(b"\xe2\x82a") == (["", "", "\ufffda"], "")


def test_a_control_token_between_the_bytes_of_a_character_yields_nothing() -> None:
    detokenizer = Detokenizer(GPT2)
    first, second = "é".encode()
    assert [detokenizer.push(id_) for id_ in (_FIRST_BYTE + first, IM_END, _FIRST_BYTE + second)] == ["", "", "é"]


@pytest.mark.parametrize("tokenizer", [GPT2, SPM], ids=["gpt2", "spm"])
@given(data=st.data())
def test_deltas_of_any_ids_join_to_the_text_of_all(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 2)))
    detokenizer = Detokenizer(tokenizer, at_text_start=True)
    deltas = [detokenizer.push(token_id) for token_id in ids]
    text = "".join(deltas) + detokenizer.flush()
    raw = b"".join(map(tokenizer.token_bytes, ids))
    if tokenizer.strips_first_space:
        raw = raw.removeprefix(b" ")
    assert text == raw.decode(errors="replace") == tokenizer.decode(ids)


def test_the_leading_space_of_a_reply_is_kept() -> None:
    reply = SPM.encode("the", add_special=False, parse_special=False)
    prompt = SPM.encode("a", add_special=True, parse_special=False)
    detokenizer = Detokenizer.after_prompt(SPM, prompt)
    assert "".join(map(detokenizer.push, reply)) == " the"


def test_the_dummy_space_is_taken_off_when_the_prompt_holds_no_text() -> None:
    reply = SPM.encode("the", add_special=False, parse_special=False)
    detokenizer = Detokenizer.after_prompt(SPM, [1])
    assert "".join(map(detokenizer.push, reply)) == "the"


def test_byte_level_text_keeps_its_first_space() -> None:
    assert GPT2.decode(GPT2.encode(" the", add_special=False, parse_special=False)) == " the"
