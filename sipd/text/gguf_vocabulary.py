"""Reads `tokenizer.ggml.*` metadata of a GGUF file into a Vocabulary.

Invariant: everything is checked before it is used, a missing id is None, and arrays are only iterated, so that a
lazy reader never has to hold all pieces at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import TYPE_CHECKING, cast

from sipd.errors import TokenizerError
from sipd.text.backend import build_backend, hidden_name
from sipd.text.pre_tokenizer import pre_tokenizer
from sipd.text.spm import SPACE, byte_of, derive_merges
from sipd.text.vocabulary import (
    HIDDEN_TYPES,
    MAX_PIECE_CHARS,
    MAX_VOCAB,
    Family,
    SpacePrefix,
    SpecialToken,
    TokenType,
    Vocabulary,
    is_end,
    looks_like_control,
    type_of,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

_KEY = "tokenizer.ggml."
_NO_ID = 0xFFFFFFFF  # how some converters write that there is no such token: -1 in 32 bits
_SPECIAL_TYPES = frozenset({TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED})


def read_gguf_vocabulary(metadata: Mapping[str, object]) -> Vocabulary:
    """Returns the vocabulary that the metadata describes.

    Raises TokenizerError when a key is missing, of the wrong type or length, or names something that is not there.
    """
    model = _string(metadata, "model")
    if model not in {"gpt2", "llama"}:
        raise TokenizerError(f"{_KEY}model: found {model!r:.80}, wanted 'gpt2' or 'llama'")
    reader = _Reader(metadata)
    return reader.byte_level() if model == "gpt2" else reader.sentencepiece()


class _Reader:
    """One reading of one file's metadata."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self.metadata = metadata
        self.size = len(_array(metadata, "tokens"))
        if not 0 < self.size <= MAX_VOCAB:
            raise TokenizerError(f"{_KEY}tokens: found {self.size} tokens, wanted 1 to {MAX_VOCAB}")
        self.bos_id = self._id("bos_token_id")
        self.eos_id = self._id("eos_token_id")
        self.unknown_id = self._id("unknown_token_id", is_lenient=True)
        self._id("padding_token_id", is_lenient=True)
        named = {self._id(name) for name in ("eot_token_id", "eom_token_id")} | {self.eos_id}
        self.end_ids = {token_id for token_id in named if token_id is not None}
        self.special: dict[int, SpecialToken] = {}
        self.scores: dict[str, float] = {}
        self.splits_at_words = True
        self.repeated: frozenset[int] = frozenset()

    def byte_level(self) -> Vocabulary:
        name = None if f"{_KEY}pre" not in self.metadata else _string(self.metadata, "pre")
        splitter = pre_tokenizer(name)
        merges = _array(self.metadata, "merges")

        def build() -> Backend:
            return build_backend(
                self._pieces(),
                self._merges(merges),
                pre_tokenizer=splitter.json(),
                ignores_merges=splitter.ignores_merges,
            )

        backend = self._without_repeats(build)
        adds_space = self._flag("add_space_prefix", default=False)
        return self._vocabulary(backend, Family.BYTE_LEVEL, adds_bos=splitter.adds_bos, adds_space=adds_space)

    def sentencepiece(self) -> Vocabulary:
        scores = _array(self.metadata, "scores")
        if len(scores) != self.size:
            raise TokenizerError(f"{_KEY}scores: found {len(scores)} scores for {self.size} tokens, wanted one each")

        def build() -> Backend:
            return build_backend(
                self._scored_pieces(scores),
                derive_merges(self.scores),
                pre_tokenizer=None,
                unknown=self._unknown_name(),
                byte_fallback=True,
            )

        backend = self._without_repeats(build)
        self.scores.clear()
        adds_space = self._flag("add_space_prefix", default=True)
        return self._vocabulary(backend, Family.SENTENCEPIECE, adds_bos=True, adds_space=adds_space)

    def _vocabulary(self, backend: Backend, family: Family, *, adds_bos: bool, adds_space: bool) -> Vocabulary:
        ends = {token.token_id for token in self.special.values() if is_end(token)}
        template = self.metadata.get("tokenizer.chat_template")
        return Vocabulary(
            backend=backend,
            size=self.size,
            family=family,
            special=self.special,
            bos_id=self.bos_id,
            eos_id=self.eos_id,
            unknown_id=self.unknown_id,
            end_ids=frozenset(self.end_ids | ends),
            adds_bos=self._flag("add_bos_token", default=adds_bos),
            adds_eos=self._flag("add_eos_token", default=False),
            splits_at_words=self.splits_at_words,
            space_prefix=SpacePrefix.ALWAYS if adds_space else SpacePrefix.NEVER,
            prefixes_spaced=family is Family.SENTENCEPIECE,
            chat_template=template if isinstance(template, str) else None,
        )

    def _id(self, name: str, *, is_lenient: bool = False) -> int | None:
        """Returns the id, None when the key is missing (or, for ids without effect, out of range)."""
        value = self.metadata.get(_KEY + name)
        if value is None or value == _NO_ID:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise TokenizerError(f"{_KEY}{name}: found {value!r:.80}, wanted a token id")
        if 0 <= value < self.size:
            return value
        if is_lenient:
            return None
        raise TokenizerError(f"{_KEY}{name}: found {value}, wanted an id below the {self.size} tokens")

    def _flag(self, name: str, *, default: bool) -> bool:
        value = self.metadata.get(_KEY + name, default)
        if not isinstance(value, bool):
            raise TokenizerError(f"{_KEY}{name}: found {value!r:.80}, wanted true or false")
        return value

    def _typed(self) -> Iterator[tuple[int, str, TokenType]]:
        """Yields (id, text, type) of every token, each checked."""
        types: Iterable[object] = (TokenType.NORMAL for _ in range(self.size))
        if f"{_KEY}token_type" in self.metadata:
            array = _array(self.metadata, "token_type")
            if len(array) != self.size:
                raise TokenizerError(
                    f"{_KEY}token_type: found {len(array)} types for {self.size} tokens, wanted one each"
                )
            types = array
        named = {self.bos_id} | self.end_ids
        texts = _array(self.metadata, "tokens")
        for token_id, (text, number) in enumerate(zip(texts, types, strict=True)):
            checked = _text(text, f"{_KEY}tokens", token_id)
            kind = type_of(checked, _token_type(number, token_id))
            if kind is TokenType.NORMAL and token_id in named and looks_like_control(checked):
                kind = TokenType.CONTROL
            yield token_id, checked, kind

    def _pieces(self) -> Iterator[tuple[str, int]]:
        """Yields (name in the backend, id); control, unknown and repeated texts get names that no text makes."""
        for token_id, text, kind in self._typed():
            yield self._name(token_id, text, kind), token_id

    def _name(self, token_id: int, text: str, kind: TokenType) -> str:
        is_repeated = token_id in self.repeated
        if kind in _SPECIAL_TYPES or is_repeated:
            self.special[token_id] = SpecialToken(token_id, text, kind)
        return hidden_name(token_id) if kind in HIDDEN_TYPES or is_repeated else text

    def _unknown_name(self) -> str | None:
        """Returns the backend's name of the token for characters that have no piece, if there is such a token."""
        for token_id, _, kind in self._typed():
            if token_id == self.unknown_id and kind in HIDDEN_TYPES:
                return hidden_name(token_id)
        return None

    def _scored_pieces(self, scores: Iterable[object]) -> Iterator[tuple[str, int]]:
        """Yields like `_pieces` and notes the score of each piece that merges may make."""
        self.scores.clear()
        for (token_id, text, kind), score in zip(self._typed(), scores, strict=True):
            name = self._name(token_id, text, kind)
            is_byte = kind is TokenType.BYTE and byte_of(text) is not None
            if name == text and text and not is_byte:
                self.scores[text] = _score(score, token_id)
                self.splits_at_words &= SPACE not in text.lstrip(SPACE)
            yield name, token_id

    def _merges(self, merges: Iterable[object]) -> Iterator[tuple[str, str]]:
        hidden = {token.text for token in self.special.values() if token.type in HIDDEN_TYPES}
        for index, merge in enumerate(merges):
            text = _text(merge, f"{_KEY}merges", index)
            cut = text.find(" ", 1)
            left, right = (text[:cut], text[cut + 1 :]) if cut > 0 else ("", "")
            if not (left and right) or " " in right:
                raise TokenizerError(f"{_KEY}merges: entry {index} is {text!r:.80}, wanted two pieces and a space")
            if not hidden or not (left in hidden or right in hidden or left + right in hidden):
                yield left, right

    def _without_repeats(self, build: Callable[[], Backend]) -> Backend:
        """Builds; when pieces repeat, the last one with a text keeps it and the others become unreachable."""
        backend = build()
        if backend.get_vocab_size() != self.size:
            last: dict[str, int] = {}
            repeated = set()
            for token_id, text, kind in self._typed():
                if kind not in HIDDEN_TYPES:
                    repeated.add(last.get(text, token_id))
                    last[text] = token_id
            self.repeated = frozenset(repeated.difference(last.values()))
            self.special = {}
            backend = build()
        if backend.get_vocab_size() != self.size:
            raise TokenizerError(f"{_KEY}tokens: found {backend.get_vocab_size()} different tokens, wanted {self.size}")
        return backend


class _Array(Sized, Iterable[object]):
    """What an array of the metadata can do: it has a length and may be iterated again and again."""


def _array(metadata: Mapping[str, object], name: str) -> _Array:
    value = metadata.get(_KEY + name)
    if value is None:
        raise TokenizerError(f"{_KEY}{name}: missing, wanted an array")
    if isinstance(value, (str, bytes)) or not (isinstance(value, Sized) and isinstance(value, Iterable)):
        raise TokenizerError(f"{_KEY}{name}: found {type(value).__name__}, wanted an array")
    return cast("_Array", value)


def _string(metadata: Mapping[str, object], name: str) -> str:
    value = metadata.get(_KEY + name)
    if not isinstance(value, str):
        raise TokenizerError(f"{_KEY}{name}: found {value!r:.80}, wanted a string")
    return value


def _text(value: object, key: str, index: int) -> str:
    if not isinstance(value, str):
        raise TokenizerError(f"{key}: entry {index} is {type(value).__name__}, wanted a string")
    if len(value) > MAX_PIECE_CHARS:
        raise TokenizerError(f"{key}: entry {index} has {len(value)} characters, wanted at most {MAX_PIECE_CHARS}")
    return value


def _token_type(value: object, token_id: int) -> TokenType:
    try:
        return TokenType(cast("int", value))
    except ValueError as error:
        raise TokenizerError(f"{_KEY}token_type: entry {token_id} is {value!r:.80}, wanted 0 to 6") from error


def _score(value: object, token_id: int) -> float:
    score = float(value) if isinstance(value, (int, float)) else math.nan
    if math.isnan(score):
        raise TokenizerError(f"{_KEY}scores: entry {token_id} is {value!r:.80}, wanted a number")
    return score
