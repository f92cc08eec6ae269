"""Fuzz target: a vocabulary, as the metadata of a GGUF file or as the tokenizer files of a checkpoint.

Invariant: what loads encodes any text to ids inside the vocabulary, and decodes all of them.
"""

from __future__ import annotations

import json

from sipd.text.tokenizer import Tokenizer
from tests.fuzz.bounds import SEPARATOR, bounded, folder

TEXT = "the</s> e\u0301 <|im_end|> \U0010ffff\n 12"
FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
DICTIONARY = (
    SEPARATOR, b'"tokenizer.ggml.', b'"added_tokens":', b'"normalizer":', b'"pre_tokenizer":', b'"type":"Sequence"',
    b'"pretokenizers":[', b'"Metaspace"', b'"ByteLevel"', b'"Regex":"', b'"post_processor":', b'"single":[', b"null",
    b"[]", b"{}", b"-1", b"1e999", b"4194303", b'"\\ud800"', b'"eos_token_id":', b'"chat_template":[',
)  # fmt: skip


def TestOneInput(data: bytes) -> None:  # noqa: N802 - the name that fuzzers look for
    """Reads one JSON object as metadata, or several as files."""
    parts = data.split(SEPARATOR, 2)
    if len(parts) == 1:
        try:
            metadata = json.loads(data)
        except (ValueError, RecursionError):
            return
        if isinstance(metadata, dict):
            with bounded():
                use(Tokenizer.from_gguf(metadata))
        return
    directory = folder() / "tokenizer"
    directory.mkdir(exist_ok=True)
    for path in directory.iterdir():
        path.unlink()
    for name, part in zip(FILES, parts, strict=False):
        (directory / name).write_bytes(part)
    with bounded():
        use(Tokenizer.from_directory(directory))


def use(tokenizer: Tokenizer) -> None:
    """Encodes a text and decodes every id of the vocabulary that it names."""
    for parse_special in (False, True):
        ids = tokenizer.encode(TEXT, add_special=True, parse_special=parse_special)
        assert all(0 <= token_id < tokenizer.vocab_size for token_id in ids)
    tokenizer.decode(range(min(tokenizer.vocab_size, 1000)))
    tokenizer.decode(tokenizer.special_ids)
    assert all(0 <= token_id < tokenizer.vocab_size for token_id in tokenizer.end_ids)
