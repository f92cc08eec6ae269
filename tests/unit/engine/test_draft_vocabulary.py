"""Two models draft for each other only when every token id means the same to both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sipd.engine.draft_vocabulary import check_same_vocabulary
from sipd.errors import ConfigError, ModelError
from sipd.weights.checkpoint import open_checkpoint
from sipd.weights.tensor_table import Checkpoint
from tests.builders import build_gguf, build_safetensors
from tests.vocabularies import gpt2_metadata

SIZE = 320


def gguf(path: Path, **values: Any) -> Checkpoint:  # noqa: ANN401 - whatever the builder takes
    """A tiny model of one block."""
    return open_checkpoint(build_gguf(path, n_layers=1, vocab_size=SIZE, **values))


def directory(path: Path, tokenizer: object = None) -> Checkpoint:
    """A checkpoint directory, with a tokenizer.json when one is given."""
    build_safetensors(path, n_layers=1, vocab_size=SIZE)
    if tokenizer is not None:
        (path / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return open_checkpoint(path)


def pieces() -> list[str]:
    """The texts of the tiny byte-level vocabulary."""
    texts = gpt2_metadata(SIZE)["tokenizer.ggml.tokens"]
    assert isinstance(texts, list)
    return texts


def tokenizer_json(texts: list[str], n_added: int = 3) -> dict[str, object]:
    """The vocabulary as a tokenizer.json, the first ids as added tokens."""
    return {
        "added_tokens": [{"id": i, "content": text, "special": True} for i, text in enumerate(texts[:n_added])],
        "model": {"type": "BPE", "vocab": {text: i for i, text in enumerate(texts) if i >= n_added}, "merges": []},
    }


def check(target: Checkpoint, draft: Checkpoint) -> None:
    """The check, for heads of equal size."""
    check_same_vocabulary(target, SIZE, draft, SIZE)


@pytest.mark.parametrize("kind", ["gpt2", "spm", None])
def test_the_same_vocabulary_passes(tmp_path: Path, kind: str | None) -> None:
    check(gguf(tmp_path / "a.gguf", with_vocab=kind), gguf(tmp_path / "b.gguf", with_vocab=kind, seed=1))


def test_other_first_and_last_tokens_are_no_other_vocabulary(tmp_path: Path) -> None:
    other = {"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.bos_token_id": 1}
    check(gguf(tmp_path / "a.gguf", with_vocab="gpt2"), gguf(tmp_path / "b.gguf", with_vocab="gpt2", metadata=other))


def test_another_size_is_refused_with_both_numbers(tmp_path: Path) -> None:
    checkpoint = gguf(tmp_path / "a.gguf")
    with pytest.raises(ConfigError, match=r"draft_model: .*a.gguf has 300 tokens, wanted the 320 of the model"):
        check_same_vocabulary(checkpoint, 320, checkpoint, 300)


def test_the_first_other_token_is_named_with_both_texts(tmp_path: Path) -> None:
    texts = pieces()
    texts[300], texts[301] = texts[301], texts[300]
    target = gguf(tmp_path / "a.gguf", with_vocab="gpt2")
    draft = gguf(tmp_path / "b.gguf", with_vocab="gpt2", metadata={"tokenizer.ggml.tokens": texts})
    wanted = rf"draft_model: .*b.gguf: token 300 is {texts[300]!r}, wanted {texts[301]!r} as in .*a.gguf"
    with pytest.raises(ConfigError, match=wanted):
        check(target, draft)


def test_another_kind_of_vocabulary_is_refused(tmp_path: Path) -> None:
    target = gguf(tmp_path / "a.gguf", with_vocab="gpt2")
    with pytest.raises(ConfigError, match="has a vocabulary of kind 'llama', wanted 'gpt2'"):
        check(target, gguf(tmp_path / "b.gguf", with_vocab="gpt2", metadata={"tokenizer.ggml.model": "llama"}))


@pytest.mark.parametrize("lacking", ["a", "b"])
def test_a_vocabulary_on_one_side_only_is_refused(tmp_path: Path, lacking: str) -> None:
    found = [gguf(tmp_path / f"{name}.gguf", with_vocab=None if name == lacking else "gpt2") for name in "ab"]
    with pytest.raises(ConfigError, match=rf"{lacking}.gguf has no vocabulary to compare"):
        check(*found)


def test_a_directory_with_the_same_tokens_as_a_gguf_file_passes(tmp_path: Path) -> None:
    target = gguf(tmp_path / "a.gguf", with_vocab="gpt2")
    check(target, directory(tmp_path / "b", tokenizer_json(pieces())))
    check(directory(tmp_path / "c", tokenizer_json(pieces())), target)


def test_ids_without_a_text_are_padding(tmp_path: Path) -> None:
    check(gguf(tmp_path / "a.gguf", with_vocab="gpt2"), directory(tmp_path / "b", tokenizer_json(pieces()[:-9])))


def test_an_added_token_with_another_text_is_refused(tmp_path: Path) -> None:
    target = directory(tmp_path / "a", tokenizer_json(pieces()))
    draft = directory(tmp_path / "b", tokenizer_json([*pieces()[:2], "<|end|>", *pieces()[3:]]))
    with pytest.raises(ConfigError, match=r"token 2 is '<\|end\|>', wanted '<\|im_end\|>'"):
        check(target, draft)


def test_equal_tokenizer_files_are_not_parsed(tmp_path: Path) -> None:
    checkpoints = [directory(tmp_path / name, ["no tokenizer at all"]) for name in "ab"]
    check(*checkpoints)


@pytest.mark.parametrize("content", [["a list"], {"model": {}}, {"model": {"vocab": ["a"]}}])
def test_a_tokenizer_file_without_pieces_is_refused(tmp_path: Path, content: object) -> None:
    target = directory(tmp_path / "a", tokenizer_json(pieces()))
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        check(target, directory(tmp_path / "b", content))
