"""What a vocabulary source (GGUF metadata or a checkpoint directory) hands to the tokenizer.

Invariant: every id in `special`, `bos_id`, `eos_id` and `end_ids` is inside the vocabulary, and the text of a
control token is not reachable through the backend model.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenizers import Tokenizer as Backend

MAX_VOCAB = 1 << 22  # 16 times the largest public vocabulary (262,144)
MAX_PIECE_CHARS = 1 << 16  # longest piece seen in public vocabularies is under 300

# Texts by which public vocabularies end a turn or a document; metadata often names only one of several.
END_TEXTS = frozenset(
    {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|return|>",
        "<|call|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<eos>",
        "</s>",
        "<EOT>",
        "[EOT]",
        "[EOS]",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
    }
)


class TokenType(enum.IntEnum):
    """Token types of `tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


HIDDEN_TYPES = frozenset({TokenType.CONTROL, TokenType.UNKNOWN})


class Family(enum.Enum):
    """How the pieces of a vocabulary stand for bytes."""

    BYTE_LEVEL = "byte-level"  # each character of a piece is one byte, in GPT-2's alphabet
    SENTENCEPIECE = "sentencepiece"  # U+2581 is a space, <0xNN> is a byte


class SpacePrefix(enum.Enum):
    """Where a space is put before text: SentencePiece's dummy prefix."""

    NEVER = "never"
    FIRST = "first"  # only at the start of the text
    ALWAYS = "always"  # at the start and after each special token


@dataclass(frozen=True, slots=True)
class SpecialToken:
    """A token that is matched as a whole in text instead of being built by merges."""

    token_id: int
    text: str
    type: TokenType


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """All that the tokenizer needs; `backend` knows every piece except the texts in `special`."""

    backend: Backend
    size: int
    family: Family
    special: Mapping[int, SpecialToken]
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    end_ids: frozenset[int]
    adds_bos: bool
    adds_eos: bool
    space_prefix: SpacePrefix
    prefixes_spaced: bool  # whether text that begins with a space gets another one before it
    splits_at_words: bool  # no piece holds a space between two letters
    chat_template: str | None


def type_of(text: str, declared: TokenType) -> TokenType:
    """Returns the type that is used: an end-of-turn text is a control token although the file says user-defined.

    Converters mark such tokens wrongly, and plain text could then end a turn. Normal pieces change only where no
    ordinary text would be written like that: Qwen2 has a normal piece `</s>`, which is HTML.
    """
    if text in END_TEXTS:
        if declared is TokenType.USER_DEFINED:
            return TokenType.CONTROL
        if declared is TokenType.NORMAL and text.startswith("<|") and text.endswith("|>"):
            return TokenType.CONTROL
    return declared


def looks_like_control(text: str) -> bool:
    """Returns whether `text` is bracketed the way control tokens are written."""
    return (text[:1], text[1:][-1:]) in {("<", ">"), ("[", "]")}


def is_end(token: SpecialToken) -> bool:
    """Returns whether the token ends a reply, judged by its type and text."""
    return token.type is TokenType.CONTROL and token.text in END_TEXTS
