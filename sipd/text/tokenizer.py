"""The tokenizer: text to token ids and back, the same for GGUF metadata and tokenizer.json.

Invariant: ordinary text never gives a control token; only `parse_special` or a template's own text does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sipd.errors import InvalidRequest, PromptTooLong
from sipd.text.backend import release_memory
from sipd.text.byte_alphabet import piece_bytes
from sipd.text.chunks import chunks
from sipd.text.detokenizer import Detokenizer
from sipd.text.gguf_vocabulary import read_gguf_vocabulary
from sipd.text.special_tokens import SpecialTokens
from sipd.text.spm import SPACE, byte_of
from sipd.text.vocabulary import HIDDEN_TYPES, Family, SpacePrefix, TokenType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from sipd.text.segment import Segment
    from sipd.text.vocabulary import Vocabulary

MAX_TEXT_BYTES = 4 << 20  # gRPC's own default message limit; the regex engine gives up at ten million steps


class Tokenizer:
    """One model's tokenizer; immutable after construction, usable from any thread."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._backend = vocabulary.backend
        self._special = vocabulary.special
        self.special_tokens = SpecialTokens(vocabulary.special.values())
        self.vocab_size = vocabulary.size
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.end_ids = vocabulary.end_ids
        self.adds_bos = vocabulary.adds_bos and vocabulary.bos_id is not None
        self.adds_eos = vocabulary.adds_eos and vocabulary.eos_id is not None
        self.special_ids = frozenset(
            token.token_id for token in vocabulary.special.values() if token.type is TokenType.CONTROL
        )
        self.chat_template = vocabulary.chat_template
        self.bos_text = "" if self.bos_id is None else self.token_text(self.bos_id)
        self.eos_text = "" if self.eos_id is None else self.token_text(self.eos_id)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> Tokenizer:
        """Returns the tokenizer of a GGUF file; raises TokenizerError. Temporary memory is given back."""
        tokenizer = cls(read_gguf_vocabulary(metadata))
        release_memory()
        return tokenizer

    @classmethod
    def from_directory(cls, path: Path) -> Tokenizer:
        """Returns the tokenizer of a checkpoint directory; raises TokenizerError. Temporary memory is given back."""
        from sipd.text.directory_vocabulary import read_directory_vocabulary  # noqa: PLC0415 - only for checkpoints

        tokenizer = cls(read_directory_vocabulary(path))
        release_memory()
        return tokenizer

    @property
    def strips_first_space(self) -> bool:
        """Whether encoding put a space before the text that decoding must take off again."""
        is_sentencepiece = self._vocabulary.family is Family.SENTENCEPIECE
        return is_sentencepiece and self._vocabulary.space_prefix is not SpacePrefix.NEVER

    def encode(
        self, text: str, *, add_special: bool, parse_special: bool, context_tokens: int | None = None
    ) -> list[int]:
        """Returns the ids of `text`.

        `add_special` adds BOS and EOS as the model's metadata say, never a second BOS. `parse_special` turns the
        texts of control tokens into these tokens; without it they are ordinary characters. Bytes for which a
        byte-level vocabulary has no piece give nothing. Raises InvalidRequest for text that is too long, and
        PromptTooLong when the ids would not leave one of `context_tokens` free; ids past that are only counted.
        """
        _check_text(text)
        parts = self.special_tokens.split(text, parse_special=parse_special)
        ids = _collected(self._encode_parts(parts), context_tokens)
        if add_special:
            ids = self._with_ends(ids)
        _check_length(len(ids), context_tokens)
        return ids

    def encode_segments(self, segments: Iterable[Segment], *, context_tokens: int | None = None) -> list[int]:
        """Returns the ids of a rendered chat; special tokens are parsed only in segments written by the template.

        Ordinary text is joined over segment borders first, so ids are those of the text as a whole. BOS as for
        `encode`, no EOS: the turn is still open. Raises as `encode`.
        """
        parts: list[int | str] = []
        n_bytes = 0
        for segment in segments:
            n_bytes += len(segment.text)
            if n_bytes > MAX_TEXT_BYTES:
                raise InvalidRequest("chat", f"the rendered chat has more than {MAX_TEXT_BYTES} bytes")
            token_id = self.special_tokens.hidden_id(segment.text) if segment.is_template else None
            if token_id is not None:
                parts.append(token_id)
            elif parts and isinstance(parts[-1], str):
                parts[-1] += segment.text
            else:
                parts.append(segment.text)
        pieces = (
            piece
            for part in parts
            for piece in ([part] if isinstance(part, int) else self.special_tokens.split(part, parse_special=False))
        )
        ids = self._with_bos(_collected(self._encode_parts(pieces), context_tokens))
        _check_length(len(ids), context_tokens)
        return ids

    def token_bytes(self, token_id: int, *, render_special: bool = False) -> bytes:
        """Returns the raw bytes that the token stands for.

        Control and unknown tokens stand for nothing unless `render_special`; so do ids past the vocabulary, which
        models with a padded output head can sample.
        """
        special = self._special.get(token_id)
        if special is not None:
            is_hidden = special.type in HIDDEN_TYPES and not render_special
            return b"" if is_hidden else special.text.encode()
        piece = self._backend.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None
        if piece is None:
            return b""
        if self._vocabulary.family is Family.BYTE_LEVEL:
            return piece_bytes(piece)
        byte = byte_of(piece)
        return piece.replace(SPACE, " ").encode() if byte is None else bytes((byte,))

    def token_text(self, token_id: int) -> str:
        """Returns the token as the vocabulary writes it; raises InvalidRequest for an id outside the vocabulary."""
        special = self._special.get(token_id)
        if special is not None:
            return special.text
        if not 0 <= token_id < self.vocab_size:
            raise InvalidRequest("ids", f"found token id {token_id}, wanted one below {self.vocab_size}")
        return self._backend.id_to_token(token_id) or ""

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of a whole sequence; U+FFFD stands for bytes that are not UTF-8."""
        detokenizer = Detokenizer(self, at_text_start=True)
        return "".join([*map(detokenizer.push, ids), detokenizer.flush()])

    def is_text(self, token_id: int) -> bool:
        """Returns whether the token stands for text (it is neither a control nor an unknown token)."""
        special = self._special.get(token_id)
        return special is None or special.type not in HIDDEN_TYPES

    def _encode_parts(self, parts: Iterable[int | str]) -> Iterator[list[int]]:
        """Yields the ids, a part or a chunk of it at a time."""
        is_sentencepiece = self._vocabulary.family is Family.SENTENCEPIECE
        prefix = self._vocabulary.space_prefix
        wants_prefix = prefix is not SpacePrefix.NEVER
        for part in parts:
            if isinstance(part, int):
                yield [part]
                wants_prefix = prefix is SpacePrefix.ALWAYS
                continue
            text = f" {part}" if wants_prefix and not self._is_spared(part) else part
            wants_prefix = False
            for chunk in chunks(text) if self._vocabulary.splits_at_words else (text,):
                spaced = chunk.replace(" ", SPACE) if is_sentencepiece else chunk
                yield self._backend_ids(spaced)

    def _backend_ids(self, text: str) -> list[int]:
        try:
            return list(self._backend.encode(text, add_special_tokens=False).ids)
        except BaseException as error:
            # The Rust library panics when its regex engine gives up; a panic is no Exception, and no bug of ours.
            if type(error).__name__ != "PanicException":
                raise
            raise InvalidRequest("input", f"the model's pre-tokenizer gave up on the text: {error}") from error

    def _is_spared(self, part: str) -> bool:
        """Whether the dummy space is left out before `part`, because it begins with a space."""
        if self._vocabulary.prefixes_spaced:
            return False
        return part.startswith((" ", SPACE) if self._vocabulary.family is Family.SENTENCEPIECE else " ")

    def _with_bos(self, ids: list[int]) -> list[int]:
        if self.adds_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def _with_ends(self, ids: list[int]) -> list[int]:
        # BOS first: with one id for both, the EOS of an empty text would pass for it
        ids = self._with_bos(ids)
        if self.adds_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids


def _collected(parts: Iterable[list[int]], context_tokens: int | None) -> list[int]:
    """Returns all ids; raises PromptTooLong with the whole count, without having held more than the context."""
    ids: list[int] = []
    n_ids = 0
    for part in parts:
        n_ids += len(part)
        if context_tokens is None or n_ids < context_tokens:
            ids += part
    _check_length(n_ids, context_tokens)
    return ids


def _check_length(n_ids: int, context_tokens: int | None) -> None:
    if context_tokens is not None and n_ids >= context_tokens:
        raise PromptTooLong(n_ids, context_tokens)


def _check_text(text: str) -> None:
    if len(text) > MAX_TEXT_BYTES:
        raise InvalidRequest("input", f"found a text of {len(text)} characters, wanted at most {MAX_TEXT_BYTES} bytes")
    try:
        n_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest("input", f"found a lone surrogate at character {error.start}, wanted Unicode") from error
    if n_bytes > MAX_TEXT_BYTES:
        raise InvalidRequest("input", f"found a text of {n_bytes} bytes, wanted at most {MAX_TEXT_BYTES}")
