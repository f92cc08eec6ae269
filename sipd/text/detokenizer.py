"""Turns token ids into text as they come: bytes in, valid UTF-8 out.

Invariant: the deltas of any ids join to the text of all of them. U+FFFD appears only where bytes can no longer
become valid, once per maximal ill-formed run. Nothing is trimmed, except SentencePiece's dummy space at the very
start of a text.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sipd.text.tokenizer import Tokenizer


class Detokenizer:
    """The detokenizer of one sequence; used by one thread at a time."""

    def __init__(self, tokenizer: Tokenizer, *, at_text_start: bool = False) -> None:
        """`at_text_start`: no text comes before the first id, so the dummy space is taken off."""
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strips_space = at_text_start and tokenizer.strips_first_space

    @classmethod
    def after_prompt(cls, tokenizer: Tokenizer, prompt_ids: Iterable[int]) -> Detokenizer:
        """Returns the detokenizer of a reply: it starts a text only if the prompt holds no text at all."""
        return cls(tokenizer, at_text_start=not any(map(tokenizer.is_text, prompt_ids)))

    def push(self, token_id: int) -> str:
        """Returns the text that became certain with this token; "" for control tokens and unfinished characters."""
        token = self._tokenizer.token_bytes(token_id)
        if self._strips_space and token:
            token = token.removeprefix(b" ")
            self._strips_space = False
        return self._decoder.decode(token)

    def flush(self) -> str:
        """Returns what is left at the end: U+FFFD for a character that was never finished."""
        return self._decoder.decode(b"", final=True)
