"""Builds the `tokenizers` object that does the merging, from streams, through one JSON buffer.

Invariant: the object's word cache is empty and stays so, and no Python list of all pieces is left behind.
49,152 pieces cost 11 MB, 18 MB at the peak; a dict of pieces and a list of merges took 15 MB more at the peak.
"""

from __future__ import annotations

import gc
import io
import json
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any

from sipd.errors import TokenizerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tokenizers import Tokenizer as Backend

_HIDDEN_PREFIX = "\x00hidden:"


def hidden_name(token_id: int) -> str:
    """Returns the name under which a token is stored so that no text can produce it.

    It has several characters and no merge makes it, and byte-level text never contains its first character.
    """
    return f"{_HIDDEN_PREFIX}{token_id}"


def build_backend(
    pieces: Iterable[tuple[str, int]],
    merges: Iterable[tuple[str, str]],
    *,
    pre_tokenizer: Mapping[str, Any] | None,
    normalizer: Mapping[str, Any] | None = None,
    unknown: str | None = None,
    byte_fallback: bool = False,
    ignores_merges: bool = False,
    fuses_unknown: bool = False,
) -> Backend:
    """Returns a backend without added tokens, truncation, padding or post-processing.

    `pieces` gives (text, id). Raises TokenizerError when a merge names an unknown piece or a text is not Unicode.
    """
    from tokenizers import Tokenizer as Backend  # noqa: PLC0415 - costs 2 MB; clients of ids alone never pay

    head = {
        "type": "BPE",
        "unk_token": unknown,
        "fuse_unk": fuses_unknown,
        "byte_fallback": byte_fallback,
        "ignore_merges": ignores_merges,
    }
    outer: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
    }
    buffer = io.BytesIO()  # its value is handed over without a copy
    buffer.write(f'{json.dumps(outer)[:-1]},"model":{json.dumps(head)[:-1]},"vocab":{{'.encode())
    try:
        _extend(buffer, (f"{encode_basestring(text)}:{token_id}" for text, token_id in pieces))
        buffer.write(b'},"merges":[')
        # One string a merge: pairs double the parser's peak. A piece with a space in it is out of any text's reach.
        reachable = (f"{left} {right}" for left, right in merges if " " not in left and " " not in right)
        _extend(buffer, map(encode_basestring, reachable))
    except UnicodeEncodeError as error:
        raise TokenizerError(f"vocabulary: a piece or merge is not valid Unicode text ({error.reason})") from error
    buffer.write(b"]}}")
    try:
        backend = Backend.from_buffer(buffer.getvalue())
    except BaseException as error:
        # The Rust library panics over some normalizers; a panic is no Exception.
        if not isinstance(error, ValueError) and type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(f"vocabulary: {str(error)[:300]}") from error
    model: Any = backend.model
    model._resize_cache(0)  # noqa: SLF001 - the only way to switch the word cache off; 10,000 words otherwise
    model._clear_cache()  # noqa: SLF001
    return backend


def _extend(buffer: io.BytesIO, items: Iterable[str]) -> None:
    separator = ""
    for item in items:
        buffer.write(f"{separator}{item}".encode())
        separator = ","


def release_memory() -> None:
    """Gives freed heap back to the system: gc, then glibc's malloc_trim where it exists."""
    import ctypes  # noqa: PLC0415 - 1 MB, used once at start

    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
