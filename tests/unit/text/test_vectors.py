"""The public vectors of five real vocabularies."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from sipd.text.tokenizer import Tokenizer
from sipd.weights.gguf import read_gguf
from tests.paths import shared_path

VOCABULARIES = ("llama-spm", "phi-3", "gpt-2", "llama-bpe", "qwen2")
SEPARATOR = "\n__ggml_vocab_test__\n"


@cache
def _tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(read_gguf(path).metadata)


def _vectors(path: Path) -> list[tuple[str, list[int]]]:
    texts = path.with_suffix(".gguf.inp").read_bytes().decode().split(SEPARATOR)
    lines = path.with_suffix(".gguf.out").read_text().split("\n")
    texts = texts if texts[-1] else texts[:-1]
    return [(text, [int(number) for number in line.split()]) for text, line in zip(texts, lines, strict=False)]


@pytest.mark.parametrize("name", VOCABULARIES)
def test_every_public_vector_gives_exactly_its_ids(name: str) -> None:
    path = shared_path("models", "vocab", f"ggml-vocab-{name}.gguf")
    vectors = _vectors(path)
    assert len(vectors) == 46
    found = [_tokenizer(path).encode(text, add_special=False, parse_special=False) for text, _ in vectors]
    assert found == [ids for _, ids in vectors]


@pytest.mark.parametrize("name", VOCABULARIES)
def test_every_public_vector_decodes_to_its_text(name: str) -> None:
    path = shared_path("models", "vocab", f"ggml-vocab-{name}.gguf")
    tokenizer = _tokenizer(path)
    for text, ids in _vectors(path):
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", VOCABULARIES)
def test_no_control_token_of_a_real_vocabulary_can_be_typed(name: str) -> None:
    tokenizer = _tokenizer(shared_path("models", "vocab", f"ggml-vocab-{name}.gguf"))
    texts = [tokenizer.token_text(token_id) for token_id in sorted(tokenizer.special_ids)[:300]]
    for text in [*texts, " ".join(texts), "".join(texts)]:
        assert not tokenizer.special_ids.intersection(tokenizer.encode(text, add_special=False, parse_special=False))
        assert tokenizer.special_ids.intersection(tokenizer.encode(text, add_special=False, parse_special=True))


def test_a_run_of_twenty_thousand_letters_is_one_chunk_of_bounded_merges() -> None:
    tokenizer = _tokenizer(shared_path("models", "vocab", "ggml-vocab-gpt-2.gguf"))
    text = "".join(chr(ord("a") + index * index % 26) for index in range(20_000))
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    assert len(ids) < len(text)
    assert tokenizer.decode(ids) == text


def test_a_megabyte_of_spaces_is_encoded_and_decodes_to_itself() -> None:
    tokenizer = _tokenizer(shared_path("models", "vocab", "ggml-vocab-llama-bpe.gguf"))
    ids = tokenizer.encode(" " * 1_000_000, add_special=False, parse_special=False)
    assert tokenizer.decode(ids) == " " * 1_000_000


def test_stories_pieces_replaced_by_empty_and_nul_text_still_load() -> None:
    metadata = dict(read_gguf(shared_path("models", "stories260K-f32.gguf")).metadata)
    tokens = list(metadata["tokenizer.ggml.tokens"])  # type: ignore[call-overload]
    tokens[5:7] = ["", "\x00"]
    metadata["tokenizer.ggml.tokens"] = tokens
    del metadata["tokenizer.ggml.unknown_token_id"], metadata["tokenizer.ggml.bos_token_id"]
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.bos_id is None
    assert not tokenizer.adds_bos
    assert tokenizer.token_bytes(5) == b""
    assert tokenizer.decode(tokenizer.encode("Once upon a time", add_special=True, parse_special=False)) == (
        "Once upon a time"
    )
