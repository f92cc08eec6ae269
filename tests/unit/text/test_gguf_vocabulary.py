"""GGUF tokenizer metadata: every way they can be wrong is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sipd.errors import TokenizerError
from sipd.text.pre_tokenizer import PRE_TOKENIZERS
from sipd.text.tokenizer import Tokenizer
from tests.unit.text.samples import CONTROL, KEY, NORMAL, gpt2, gpt2_metadata, spm, spm_metadata

_TOKENS: list[str] = gpt2_metadata()[f"{KEY}tokens"]  # type: ignore[assignment]


def _encode(text: str, **changes: object) -> list[int]:
    return gpt2(**changes).encode(text, add_special=False, parse_special=False)


def test_a_missing_pre_tokenizer_means_the_documented_default() -> None:
    assert _encode("the 1234", pre=None) == _encode("the 1234", pre="default")


def test_an_unknown_pre_tokenizer_is_refused_by_name() -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.ggml\.pre: found 'nonsense', wanted one of"):
        gpt2(pre="nonsense")


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer_of_the_table_builds_and_loses_no_text(name: str) -> None:
    tokenizer = gpt2(pre=name)
    for text in ("I'll go  to 12345 places\n\n  now!?…", " \t\r\n x", "日本語 и ещё 🙂 ", "a" * 300):
        assert tokenizer.decode(tokenizer.encode(text, add_special=False, parse_special=False)) == text


def test_a_missing_token_type_array_means_normal_tokens() -> None:
    assert gpt2(token_type=None).special_ids == {0, 1, 3}
    assert len(_encode("<think>", token_type=None)) > 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "bert"}, "model: found 'bert', wanted 'gpt2' or 'llama'"),
        ({"model": None}, "model: found None, wanted a string"),
        ({"pre": 7}, "pre: found 7, wanted a string"),
        ({"tokens": None}, "tokens: missing, wanted an array"),
        ({"tokens": "text"}, "tokens: found str, wanted an array"),
        ({"tokens": 7}, "tokens: found int, wanted an array"),
        ({"tokens": [], "token_type": []}, "tokens: found 0 tokens"),
        ({"tokens": [*_TOKENS[:-1], 7]}, "tokens: entry 271 is int, wanted a string"),
        ({"tokens": [*_TOKENS[:-1], "x" * 70_000]}, "tokens: entry 271 has 70000 characters"),
        ({"tokens": [*_TOKENS[:-1], "\ud800"]}, "not valid Unicode"),
        ({"tokens": [*_TOKENS[:-1], "\x00hidden:0"], "merges": ["t h"]}, "found 271 different tokens, wanted 272"),
        ({"token_type": [NORMAL] * 5}, "token_type: found 5 types for 272 tokens"),
        ({"token_type": [NORMAL] * 271 + [9]}, "token_type: entry 271 is 9, wanted 0 to 6"),
        ({"token_type": [NORMAL] * 271 + ["x"]}, "token_type: entry 271 is 'x'"),
        ({"merges": None}, "merges: missing"),
        ({"merges": ["t h", "th"]}, "merges: entry 1 is 'th', wanted two pieces"),
        ({"merges": ["t h", " "]}, "merges: entry 1 is ' ', wanted two pieces"),
        ({"merges": ["t h", b"t h"]}, "merges: entry 1 is bytes"),
        ({"merges": ["t qq"]}, "vocabulary: .*qq"),
        ({"merges": ["x z"]}, "vocabulary: .*xz"),
        ({"merges": ["t h i"]}, "merges: entry 0 is 't h i', wanted two pieces"),
        ({"bos_token_id": 272}, "bos_token_id: found 272, wanted an id below the 272 tokens"),
        ({"eos_token_id": -1}, "eos_token_id: found -1"),
        ({"eot_token_id": "3"}, "eot_token_id: found '3', wanted a token id"),
        ({"eom_token_id": True}, "eom_token_id: found True"),
        ({"add_bos_token": 1}, "add_bos_token: found 1, wanted true or false"),
    ],
)
def test_bad_byte_level_metadata_are_refused_by_name(changes: dict[str, object], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        gpt2(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": None}, "scores: missing"),
        ({"scores": [1.0]}, "scores: found 1 scores for 273 tokens"),
        ({"scores": [0.0] * 272 + [float("nan")]}, "scores: entry 272 is nan"),
        ({"scores": [0.0] * 272 + ["x"]}, "scores: entry 272 is 'x'"),
    ],
)
def test_bad_scores_are_refused_by_name(changes: dict[str, object], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        spm(**changes)


def test_padding_and_unknown_ids_out_of_range_are_ignored() -> None:
    tokenizer = gpt2(padding_token_id=2**32 - 1, unknown_token_id=2**32 - 1)
    assert tokenizer._vocabulary.unknown_id is None


@pytest.mark.parametrize("build", [gpt2, spm])
def test_an_id_of_minus_one_in_32_bits_means_no_such_token(build: Callable[..., Tokenizer]) -> None:
    tokenizer = build(bos_token_id=2**32 - 1, eos_token_id=2**32 - 1, add_bos_token=True, add_eos_token=True)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (None, None)
    assert tokenizer.encode("", add_special=True, parse_special=False) == []


def test_repeated_tokens_load_and_each_id_keeps_its_text() -> None:
    tokens = [*_TOKENS, "the", "the"]
    tokenizer = gpt2(tokens=tokens, token_type=[CONTROL] * 4 + [NORMAL] * (len(tokens) - 4), pre="gpt-2")
    ids = tokenizer.encode("the", add_special=False, parse_special=False)
    assert ids == [len(tokens) - 1]
    assert [tokenizer.token_bytes(id_) for id_ in (264, 272, 273)] == [b"the"] * 3


def test_empty_and_nul_tokens_load() -> None:
    tokens = list(spm_metadata()[f"{KEY}tokens"])  # type: ignore[call-overload]
    tokens[5:7] = ["", "\x00"]
    tokenizer = spm(tokens=tokens)
    assert (tokenizer.token_bytes(5), tokenizer.token_bytes(6)) == (b"", b"\x00")


def test_an_end_id_of_a_normal_token_in_brackets_becomes_a_control_token() -> None:
    tokens = [*_TOKENS, "<stop>"]
    tokenizer = gpt2(tokens=tokens, token_type=[NORMAL] * len(tokens), eos_token_id=272)
    assert 272 in tokenizer.special_ids


def test_a_nest_of_special_tokens_too_deep_to_search_is_refused() -> None:
    deep = ["x" * length for length in range(1, 3000)]
    with pytest.raises(TokenizerError, match="too deeply nested"):
        gpt2(tokens=[*_TOKENS, *deep], token_type=[NORMAL] * 272 + [4] * len(deep))


def test_arrays_are_only_iterated() -> None:
    class Lazy:
        def __init__(self, items: list[object]) -> None:
            self._items = items

        def __len__(self) -> int:
            return len(self._items)

        def __iter__(self) -> object:
            return iter(self._items)

    metadata = gpt2_metadata()
    lazy = {name: Lazy(metadata[KEY + name]) for name in ("tokens", "token_type", "merges")}  # type: ignore[arg-type]
    assert gpt2(**lazy).encode("the", add_special=False, parse_special=False) == _encode("the")


def test_chat_template_comes_from_the_metadata() -> None:
    assert gpt2().chat_template is None
    metadata = {**gpt2_metadata(), "tokenizer.chat_template": "{{ 1 }}"}
    assert Tokenizer.from_gguf(metadata).chat_template == "{{ 1 }}"
