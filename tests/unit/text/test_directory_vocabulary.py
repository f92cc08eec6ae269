"""Tokenizers of checkpoint directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sipd.errors import TokenizerError
from sipd.text.pre_tokenizer import PRE_TOKENIZERS
from sipd.text.tokenizer import Tokenizer
from tests.unit.text.samples import KEY, gpt2, gpt2_metadata, spm, spm_metadata

_CONFIG: dict[str, Any] = {
    "bos_token": "<|begin|>",
    "eos_token": {"content": "<|end_of_text|>"},
    "add_bos_token": False,
}


def _byte_level(**model: object) -> dict[str, Any]:
    """Return the tokenizer.json of the sample vocabulary; `<|begin|>` lies outside the model as in Llama 3."""
    metadata: dict[str, Any] = gpt2_metadata()
    tokens = metadata[f"{KEY}tokens"]
    return {
        "added_tokens": [
            {"id": index, "content": tokens[index], "special": index < 4, "normalized": False} for index in range(6)
        ],
        "normalizer": None,
        "pre_tokenizer": PRE_TOKENIZERS["llama-bpe"].json(),
        "post_processor": None,
        "decoder": {"type": "ByteLevel"},
        "model": {
            "type": "BPE",
            "vocab": {text: index for index, text in enumerate(tokens) if index > 0},
            "merges": metadata[f"{KEY}merges"],
            "ignore_merges": True,
            **model,
        },
    }


def _sentencepiece(**parts: object) -> dict[str, Any]:
    metadata: dict[str, Any] = spm_metadata()
    tokens = metadata[f"{KEY}tokens"]
    vocab = {text: index for index, text in enumerate(tokens)}
    merges = [["t", "h"], ["th", "e"], ["\u2581", "the"], ["\u2581", "a"], ["\u2581", "\u2581"], ["<", "s"]]
    return {
        "added_tokens": [{"id": index, "content": tokens[index], "special": True} for index in range(3)],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "\u2581"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
            ],
        },
        "pre_tokenizer": None,
        "decoder": {"type": "ByteFallback"},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges, "unk_token": "<unk>", "byte_fallback": True},
        **parts,
    }


def _write(directory: Path, tokenizer: object, config: object = None, **files: object) -> Path:
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "tokenizer_config.json").write_text(json.dumps(_CONFIG if config is None else config))
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


TEXTS = ["", "the  thin\n\n a<think>the</s> <|im_end|> é🙂", " the", "<s>the</s>the"]
# Where no part begins with a space
UNSPACED_TEXTS = ["", "the  thin\n\n a<think>the</s><|im_end|> é🙂", "<s>the</s>the"]


@pytest.mark.parametrize("parse_special", [True, False])
def test_a_byte_level_directory_gives_the_ids_of_the_same_gguf(tmp_path: Path, parse_special: bool) -> None:
    tokenizer = Tokenizer.from_directory(_write(tmp_path, _byte_level()))
    reference = gpt2()
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special=True, parse_special=parse_special)
        assert ids == reference.encode(text, add_special=True, parse_special=parse_special)
        assert tokenizer.decode(ids) == reference.decode(ids)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size) == (0, 1, 272)
    assert tokenizer.special_ids == reference.special_ids
    assert tokenizer.end_ids == reference.end_ids


_PRE_TOKENIZER: dict[str, Any] = {"type": "Metaspace", "replacement": "\u2581", "split": False}
_METASPACE: dict[str, Any] = {"normalizer": None, "pre_tokenizer": _PRE_TOKENIZER}
_SPM_CONFIG = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True}


@pytest.mark.parametrize(
    ("parts", "texts"),
    [({}, TEXTS), (_METASPACE, UNSPACED_TEXTS)],
    ids=["prepend", "metaspace"],
)
def test_a_sentencepiece_directory_gives_the_ids_of_the_same_gguf(
    tmp_path: Path, parts: dict[str, Any], texts: list[str]
) -> None:
    tokenizer = Tokenizer.from_directory(_write(tmp_path, _sentencepiece(**parts), _SPM_CONFIG))
    reference = spm()
    for text in texts:
        ids = tokenizer.encode(text, add_special=True, parse_special=True)
        assert ids == reference.encode(text, add_special=True, parse_special=True)
        assert tokenizer.decode(ids) == reference.decode(ids)


SPACE, SPACE_THE, BOS = 259, 269, 1


@pytest.mark.parametrize("scheme", ["always", "first"])
@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("the", [SPACE_THE]),
        (" the", [SPACE_THE]),
        ("\u2581the", [SPACE_THE]),
        ("  the", [SPACE, SPACE_THE]),
        (" ", [SPACE]),
        ("<s> the", [BOS, SPACE_THE]),
    ],
)
def test_a_metaspace_puts_no_space_before_a_space(tmp_path: Path, scheme: str, text: str, ids: list[int]) -> None:
    metaspace = {**_PRE_TOKENIZER, "prepend_scheme": scheme}
    written = _write(tmp_path, _sentencepiece(normalizer=None, pre_tokenizer=metaspace), {})
    assert Tokenizer.from_directory(written).encode(text, add_special=False, parse_special=True) == ids


@pytest.mark.parametrize("pre_tokenizer", [None, _PRE_TOKENIZER], ids=["alone", "before-metaspace"])
def test_a_prepend_puts_a_space_before_a_space(tmp_path: Path, pre_tokenizer: object) -> None:
    tokenizer = Tokenizer.from_directory(_write(tmp_path, _sentencepiece(pre_tokenizer=pre_tokenizer), {}))
    assert tokenizer.encode(" the", add_special=False, parse_special=False) == [SPACE, SPACE_THE]


def test_a_normalizer_that_strips_spaces_is_refused(tmp_path: Path) -> None:
    parts = [{"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Prepend", "prepend": "\u2581"}]
    root = _sentencepiece(normalizer={"type": "Sequence", "normalizers": parts})
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: normalizer: found 'Strip', not supported"):
        Tokenizer.from_directory(_write(tmp_path, root, {}))


def test_a_byte_level_vocabulary_may_strip_spaces(tmp_path: Path) -> None:
    root = {**_byte_level(), "normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}}
    tokenizer = Tokenizer.from_directory(_write(tmp_path, root))
    assert tokenizer.encode("  the ", add_special=False, parse_special=False) == [264]


def test_a_metaspace_that_prepends_only_at_the_start_does_not_after_special_tokens(tmp_path: Path) -> None:
    pre_tokenizer = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    written = _write(tmp_path, _sentencepiece(normalizer=None, pre_tokenizer=pre_tokenizer), {})
    ids = Tokenizer.from_directory(written).encode("the<s>the", add_special=False, parse_special=True)
    assert [spm().token_text(token_id) for token_id in ids] == ["\u2581the", "<s>", "the"]


def test_an_unknown_prepend_scheme_is_refused(tmp_path: Path) -> None:
    part = {"type": "Metaspace", "prepend_scheme": "sometimes"}
    with pytest.raises(TokenizerError, match="prepend_scheme: found 'sometimes'"):
        Tokenizer.from_directory(_write(tmp_path, _sentencepiece(pre_tokenizer=part), {}))


def test_bos_is_added_when_only_the_post_processor_says_so(tmp_path: Path) -> None:
    root = _byte_level()
    single = [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    root["post_processor"] = {"type": "Sequence", "processors": [{"type": "TemplateProcessing", "single": single}]}
    tokenizer = Tokenizer.from_directory(_write(tmp_path, root, {"bos_token": "<|begin|>"}))
    assert tokenizer.adds_bos
    assert not tokenizer.adds_eos


def test_ids_come_from_the_special_tokens_map_when_the_config_names_none(tmp_path: Path) -> None:
    written = _write(tmp_path, _byte_level(), {}, special_tokens_map={"eos_token": "<|im_end|>"})
    tokenizer = Tokenizer.from_directory(written)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (None, 3)


@pytest.mark.parametrize(("value", "ids"), [(4, {4}), ([4, 5], {4, 5}), (None, set())])
def test_end_ids_hold_those_of_the_generation_config(tmp_path: Path, value: object, ids: set[int]) -> None:
    written = _write(tmp_path, _byte_level(), generation_config={"eos_token_id": value})
    assert Tokenizer.from_directory(written).end_ids == {1, 3} | ids


def test_the_chat_template_is_found_in_the_configuration(tmp_path: Path) -> None:
    assert Tokenizer.from_directory(_write(tmp_path, _byte_level())).chat_template is None
    several = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "list"}]
    assert Tokenizer.from_directory(_write(tmp_path, _byte_level(), {"chat_template": several})).chat_template == "list"
    assert Tokenizer.from_directory(_write(tmp_path, _byte_level(), {"chat_template": "key"})).chat_template == "key"


@pytest.mark.parametrize("config", [{}, {"chat_template": "key"}], ids=["alone", "beside-another"])
def test_a_chat_template_in_a_file_of_its_own_wins(tmp_path: Path, config: dict[str, Any]) -> None:
    (tmp_path / "chat_template.jinja").write_text("file")
    assert Tokenizer.from_directory(_write(tmp_path, _byte_level(), config)).chat_template == "file"


def test_a_chat_template_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(TokenizerError, match=r"chat_template\.jinja: cannot be read"):
        Tokenizer.from_directory(_write(tmp_path, _byte_level(), {"chat_template": "key"}))


def test_an_unknown_token_outside_the_vocabulary_is_none(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_directory(_write(tmp_path, _byte_level(), {**_CONFIG, "unk_token": "[UNK]"}))
    assert tokenizer._vocabulary.unknown_id is None


def test_parts_of_a_model_that_do_nothing_are_taken(tmp_path: Path) -> None:
    root = _byte_level(continuing_subword_prefix="", end_of_word_suffix="", dropout=0.0)
    tokenizer = Tokenizer.from_directory(_write(tmp_path, root))
    assert tokenizer.encode("the", add_special=False, parse_special=False) == [264]


def test_merges_as_pairs_are_read_too(tmp_path: Path) -> None:
    root = _byte_level(merges=[merge.split(" ") for merge in _byte_level()["model"]["merges"]])
    tokenizer = Tokenizer.from_directory(_write(tmp_path, root))
    assert tokenizer.encode("the", add_special=False, parse_special=False) == [264]


def _added(**changes: object) -> dict[str, Any]:
    root = _byte_level()
    root["added_tokens"][3].update(changes)
    return root


@pytest.mark.parametrize(
    ("root", "config", "message"),
    [
        ([], {}, "tokenizer.json: root: found list, wanted an object"),
        ({}, {}, "tokenizer.json: model: found NoneType"),
        (_byte_level(type="Unigram"), {}, "model.type: found 'Unigram', wanted 'BPE'"),
        (_byte_level(vocab=None), {}, "model.vocab: found NoneType"),
        ({**_byte_level(vocab={}), "added_tokens": []}, {}, "model.vocab is empty"),
        (_byte_level(vocab={"a": -1}), {}, "model.vocab: 'a' is -1, wanted an id"),
        (_byte_level(vocab={"a": 2**40}), {}, "model.vocab: 'a' is 1099511627776"),
        (_byte_level(vocab={"a": 7, "b": 7}, merges=[]), {}, "two pieces have the same id"),
        (_byte_level(merges=["t h", "x"]), {}, r"model.merges\[1\] is 'x', wanted two pieces"),
        (_byte_level(merges=[["t", 1]]), {}, r"model.merges\[0\] is"),
        (_byte_level(merges=["t qq"]), {}, "vocabulary: .*qq"),
        (_byte_level(unk_token=[]), {}, "unk_token"),
        (_byte_level(end_of_word_suffix="</w>"), {}, "model.end_of_word_suffix: found '</w>', wanted none"),
        (_byte_level(continuing_subword_prefix="##"), {}, "model.continuing_subword_prefix: found '##', wanted none"),
        (_byte_level(dropout=0.1), {}, "model.dropout: found 0.1, wanted none"),
        (_added(id=None), {}, r"added_tokens\[3\]: wanted an id and a content"),
        (_added(id=9), {}, "'<|im_end|>' has another id"),
        (_added(rstrip=True), {}, "'<|im_end|>': rstrip is not supported"),
        ({**_byte_level(), "decoder": None, "pre_tokenizer": None}, {}, "neither a byte-level nor a SentencePiece"),
        (_byte_level(), {"bos_token": "<nowhere>"}, "bos_token is '<nowhere>', which is not in the vocabulary"),
    ],
)
def test_bad_directories_are_refused_by_name(tmp_path: Path, root: object, config: object, message: str) -> None:
    with pytest.raises(TokenizerError, match=message.replace("|", r"\|")):
        Tokenizer.from_directory(_write(tmp_path, root, config))


def test_an_end_id_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="eos_token_id: found 272, wanted ids below 272"):
        Tokenizer.from_directory(_write(tmp_path, _byte_level(), generation_config={"eos_token_id": 272}))


def test_a_directory_without_tokenizer_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: missing"):
        Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000])
def test_a_file_that_is_not_json_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(TokenizerError, match="cannot be read as JSON"):
        Tokenizer.from_directory(tmp_path)


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(65 << 20)
    with pytest.raises(TokenizerError, match="wanted at most"):
        Tokenizer.from_directory(tmp_path)
