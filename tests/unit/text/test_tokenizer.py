"""Tokenizer: special tokens, BOS and EOS, bytes, limits."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sipd.errors import InvalidRequest, PromptTooLong
from sipd.text import tokenizer as tokenizer_module
from sipd.text.backend import build_backend
from sipd.text.chunks import CHUNK_CHARS, chunks
from tests.unit.text.samples import BOS, CONTROL, EOS, IM_END, IM_START, KEY, NORMAL, THINK, gpt2, gpt2_metadata, spm

GPT2 = gpt2()
SPM = spm()
PIECES = st.sampled_from(
    ["<|im_end|>", "<|im_", "end|>", "<s>", "</s>", "<", "s>", " ", "the", "\n", "<think>", "é", "🙂"]
)


def test_a_control_token_in_plain_text_is_ordinary_characters() -> None:
    ids = GPT2.encode("<|im_end|>", add_special=False, parse_special=False)
    assert IM_END not in ids
    assert GPT2.decode(ids) == "<|im_end|>"


def test_a_control_token_is_parsed_on_request() -> None:
    ids = GPT2.encode("a<|im_end|>the", add_special=False, parse_special=True)
    assert ids[1] == IM_END
    assert len(ids) == 3


def test_a_user_defined_token_is_matched_in_any_text() -> None:
    assert THINK in GPT2.encode("a<think>b", add_special=False, parse_special=False)


@given(st.lists(PIECES).map("".join))
def test_plain_text_never_gives_a_control_token(text: str) -> None:
    for tokenizer in (GPT2, SPM):
        ids = tokenizer.encode(text, add_special=False, parse_special=False)
        assert not tokenizer.special_ids.intersection(ids)


@given(st.text())
def test_plain_text_decodes_to_itself(text: str) -> None:
    for tokenizer in (GPT2, SPM):
        assert tokenizer.decode(tokenizer.encode(text, add_special=True, parse_special=False)) == text


def test_a_word_that_is_a_control_token_as_a_whole_is_not_found_by_ignoring_merges() -> None:
    metadata = gpt2_metadata()
    metadata[f"{KEY}tokens"] = [*metadata[f"{KEY}tokens"], "stop"]  # type: ignore[misc]
    metadata[f"{KEY}token_type"] = [*metadata[f"{KEY}token_type"], CONTROL]  # type: ignore[misc]
    tokenizer = tokenizer_module.Tokenizer.from_gguf(metadata)
    assert len(tokenizer.encode("stop", add_special=False, parse_special=False)) == 4


def test_a_merge_that_would_make_a_control_token_is_left_out() -> None:
    tokenizer = gpt2(token_type=[CONTROL] * 6 + [NORMAL] * 258 + [CONTROL] + [NORMAL] * 7)
    ids = tokenizer.encode("the", add_special=False, parse_special=False)
    assert 264 not in ids
    assert tokenizer.decode(ids) == "the"


def test_a_literal_byte_token_is_ordinary_text() -> None:
    ids = SPM.encode("<0x41>", add_special=False, parse_special=False)
    assert SPM.decode(ids) == "<0x41>"


def test_one_bos_is_added_when_the_metadata_say_so() -> None:
    tokenizer = gpt2(add_bos_token=True)
    assert tokenizer.encode("a", add_special=True, parse_special=False)[0] == BOS
    assert BOS not in tokenizer.encode("a", add_special=False, parse_special=False)


def test_a_bos_in_a_parsed_prompt_is_not_doubled() -> None:
    tokenizer = gpt2(add_bos_token=True)
    assert tokenizer.encode("<|begin|>a", add_special=True, parse_special=True).count(BOS) == 1


def test_no_bos_is_added_when_the_metadata_say_no() -> None:
    assert BOS not in gpt2(add_bos_token=False).encode("a", add_special=True, parse_special=False)


def test_eos_is_added_when_the_metadata_say_so() -> None:
    assert gpt2(add_eos_token=True).encode("a", add_special=True, parse_special=False)[-1] == EOS


def test_one_id_for_both_ends_stands_at_both_ends_also_of_an_empty_text() -> None:
    tokenizer = gpt2(bos_token_id=EOS, add_bos_token=True, add_eos_token=True)
    assert tokenizer.encode("", add_special=True, parse_special=False) == [EOS, EOS]
    assert tokenizer.encode("the", add_special=True, parse_special=False) == [EOS, 264, EOS]


def test_defaults_without_flags_follow_the_pre_tokenizer_and_the_family() -> None:
    assert gpt2(add_bos_token=None).adds_bos
    assert not gpt2(add_bos_token=None, pre="qwen2").adds_bos
    assert SPM.adds_bos
    assert not SPM.adds_eos


def test_missing_ids_are_none_and_add_nothing() -> None:
    tokenizer = spm(bos_token_id=None, eos_token_id=None, unknown_token_id=None)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (None, None)
    assert not tokenizer.adds_bos
    assert tokenizer.bos_text == ""
    assert 1 not in tokenizer.encode("the", add_special=True, parse_special=False)


def test_end_ids_hold_all_named_ids_and_all_control_tokens_that_end_a_turn() -> None:
    assert gpt2(eos_token_id=BOS).end_ids == {BOS, EOS, IM_END}
    assert gpt2(eot_token_id=IM_START).end_ids == {EOS, IM_START, IM_END}
    assert gpt2(eom_token_id=IM_START).end_ids == {EOS, IM_START, IM_END}


def test_a_user_defined_end_token_is_taken_for_a_control_token() -> None:
    tokenizer = gpt2(token_type=[4] * 6 + [NORMAL] * 266)
    assert IM_END in tokenizer.end_ids
    assert IM_END in tokenizer.special_ids
    assert IM_END not in tokenizer.encode("<|im_end|>", add_special=False, parse_special=False)


def test_a_normal_piece_written_like_an_html_end_tag_stays_text() -> None:
    assert GPT2.token_text(271) == "</s>"
    assert 271 not in GPT2.end_ids
    assert 271 not in GPT2.special_ids
    assert GPT2.token_bytes(271) == b"</s>"


def test_control_tokens_stand_for_no_bytes_unless_they_are_rendered() -> None:
    assert GPT2.token_bytes(IM_END) == b""
    assert GPT2.token_bytes(IM_END, render_special=True) == b"<|im_end|>"
    assert GPT2.token_bytes(THINK) == b"<think>"


def test_an_id_past_the_vocabulary_stands_for_no_bytes_and_has_no_text() -> None:
    assert GPT2.token_bytes(GPT2.vocab_size) == b""
    assert GPT2.token_bytes(-1) == b""
    with pytest.raises(InvalidRequest, match="ids: found token id 272"):
        GPT2.token_text(GPT2.vocab_size)


def test_token_text_is_the_piece_as_the_vocabulary_writes_it() -> None:
    assert GPT2.token_text(266) == "\u0120the"
    assert GPT2.token_text(IM_END) == "<|im_end|>"


def test_sentencepiece_puts_a_space_before_text_and_after_special_tokens() -> None:
    the = SPM.encode("the", add_special=False, parse_special=False)
    assert SPM.encode("the<s>the", add_special=False, parse_special=True) == [*the, 1, *the]


def test_sentencepiece_puts_a_space_before_a_space() -> None:
    assert SPM.encode(" the", add_special=False, parse_special=False) == [259, 269]


@pytest.mark.parametrize(("text", "ids"), [("the", [266]), (" the", [266]), ("<think>the", [THINK, 266])])
def test_a_byte_level_space_prefix_is_left_out_before_a_space(text: str, ids: list[int]) -> None:
    tokenizer = gpt2(add_space_prefix=True)
    assert tokenizer.encode(text, add_special=False, parse_special=False) == ids


def test_sentencepiece_without_space_prefix_adds_no_space() -> None:
    tokenizer = spm(add_space_prefix=False)
    assert tokenizer.token_text(tokenizer.encode("the", add_special=False, parse_special=False)[0]) == "the"


def test_sentencepiece_falls_back_to_bytes() -> None:
    ids = spm(add_space_prefix=False).encode("é", add_special=False, parse_special=False)
    assert ids == [3 + 0xC3, 3 + 0xA9]


def test_sentencepiece_without_bytes_gives_the_unknown_token() -> None:
    metadata_types = [2, 3, 3] + [5] * 256 + [NORMAL] * 14
    tokens = ["<unk>", "<s>", "</s>", *(f"unused{index}" for index in range(256)), *"\u2581theas><", *"bcdfgi"]
    tokenizer = spm(tokens=tokens, token_type=metadata_types, scores=[0.0] * len(tokens), add_space_prefix=False)
    assert tokenizer.encode("é", add_special=False, parse_special=False) == [0]
    assert tokenizer.decode([0]) == ""


def test_bytes_without_a_piece_give_nothing_and_the_rest_stays() -> None:
    metadata = gpt2_metadata()
    tokens = list(metadata[f"{KEY}tokens"])  # type: ignore[call-overload]
    tokens[6 + 4] = "[removed]"
    metadata[f"{KEY}tokens"] = tokens
    tokenizer = tokenizer_module.Tokenizer.from_gguf(metadata)
    assert tokenizer.encode("\x04", add_special=True, parse_special=False) == []
    assert len(tokenizer.encode("a\x04b", add_special=True, parse_special=False)) == 2


def test_empty_text_gives_no_ids() -> None:
    assert GPT2.encode("", add_special=True, parse_special=True) == []
    assert SPM.encode("", add_special=False, parse_special=False) == []


def test_text_above_the_byte_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_module, "MAX_TEXT_BYTES", 10)
    with pytest.raises(InvalidRequest, match="11 characters"):
        GPT2.encode("a" * 11, add_special=False, parse_special=False)
    with pytest.raises(InvalidRequest, match="12 bytes"):
        GPT2.encode("é" * 6, add_special=False, parse_special=False)


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="lone surrogate at character 1"):
        GPT2.encode("a\ud800", add_special=False, parse_special=False)


def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers() -> None:
    text = "a the" * 10_000
    n_ids = len(GPT2.encode(text, add_special=False, parse_special=False))
    with pytest.raises(PromptTooLong, match=f"prompt has {n_ids} tokens, the context holds 100 "):
        GPT2.encode(text, add_special=False, parse_special=False, context_tokens=100)
    assert len(GPT2.encode(text, add_special=False, parse_special=False, context_tokens=n_ids + 1)) == n_ids


def test_bos_counts_towards_the_context() -> None:
    with pytest.raises(PromptTooLong):
        gpt2(add_bos_token=True).encode("a", add_special=True, parse_special=False, context_tokens=2)


@settings(max_examples=20)
@given(st.lists(st.sampled_from(["the", "a", " ", "  ", "\n", ".", "é"]), max_size=60).map("".join))
def test_chunks_join_to_the_text_and_give_the_same_ids(text: str) -> None:
    long = text + " the a the" * (CHUNK_CHARS // 5) + text
    assert "".join(chunks(long)) == long
    assert len(list(chunks(long))) > 1
    for tokenizer in (GPT2, SPM):
        whole = tokenizer._backend.encode(
            long if tokenizer is GPT2 else f"\u2581{long}".replace(" ", "\u2581"), add_special_tokens=False
        )
        assert tokenizer.encode(long, add_special=False, parse_special=False) == whole.ids


def test_a_vocabulary_with_inner_spaces_is_not_encoded_in_chunks() -> None:
    metadata = spm()._vocabulary
    assert metadata.splits_at_words
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "a\u2581", "a\u2581a"]
    types = [2, 3, 3] + [6] * 256 + [1] * 4
    tokenizer = spm(tokens=tokens, token_type=types, scores=[0.0] * 261 + [2.0, 1.0])
    assert not tokenizer._vocabulary.splits_at_words
    text = "a a" * CHUNK_CHARS
    assert tokenizer.decode(tokenizer.encode(text, add_special=False, parse_special=False)) == text


def test_a_regex_that_gives_up_refuses_the_text_and_not_the_process(capfd: pytest.CaptureFixture[str]) -> None:
    vocabulary = gpt2()._vocabulary
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    backend = build_backend([("a", 0)], [], pre_tokenizer=split)
    tokenizer = tokenizer_module.Tokenizer(dataclasses.replace(vocabulary, backend=backend))
    with pytest.raises(InvalidRequest, match="pre-tokenizer gave up"):
        tokenizer.encode("a" * 40 + "!", add_special=False, parse_special=False)
    capfd.readouterr()
    assert tokenizer.encode("a", add_special=False, parse_special=False) == [0]
