"""Cuts long text into chunks that can be encoded one by one, so that encoding needs little memory at a time.

Invariant: a cut lies before a single space between two ASCII letters. Every pre-tokenizer of the table ends a word
there, and a SentencePiece vocabulary without inner spaces has no piece across it: the ids are those of the whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

CHUNK_CHARS = 1 << 14  # encoding takes 150 to 250 bytes a character for a while, so 4 MB
_CUT = re.compile("[A-Za-z](?= [A-Za-z])")


def chunks(text: str) -> Iterator[str]:
    """Yields runs of at least CHUNK_CHARS characters (the last may be shorter) that join to `text`."""
    start = 0
    while len(text) - start > CHUNK_CHARS:
        cut = _CUT.search(text, start + CHUNK_CHARS)
        if cut is None:
            break
        yield text[start : cut.end()]
        start = cut.end()
    if start < len(text) or not text:
        yield text[start:]
