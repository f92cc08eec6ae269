"""Reads the tokenizer files of a Hugging Face checkpoint directory into a Vocabulary.

Invariant: the merging is done by the file's own model, normalizer and pre-tokenizer; special tokens and the
dummy space are taken out of them, because sipd decides itself where special tokens may be parsed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sipd.errors import TokenizerError
from sipd.plain_file import read_plain_file
from sipd.text.backend import build_backend, hidden_name
from sipd.text.spm import SPACE
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
    type_of,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

MAX_FILE_BYTES = 64 << 20  # the largest public tokenizer.json has 34 MB (262,144 pieces)
_METASPACE = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "never"}
# Parts of a model that change its pieces or its merges; null, "" and 0 do nothing
_UNSUPPORTED_PARTS = ("continuing_subword_prefix", "end_of_word_suffix", "dropout")
_CHAT_TEMPLATE_NAME = "chat_template.jinja"


def read_directory_vocabulary(path: Path) -> Vocabulary:
    """Returns the vocabulary of the checkpoint in `path`; raises TokenizerError naming the file and the entry."""
    tokenizer = _read_json(path / "tokenizer.json", is_required=True)
    configs = [_read_json(path / name) for name in ("tokenizer_config.json", "special_tokens_map.json")]
    generation = [_read_json(path / name) for name in ("generation_config.json", "config.json")]
    return _Reader(path, tokenizer).vocabulary(configs, generation)


class _Reader:
    """One reading of one tokenizer.json."""

    def __init__(self, directory: Path, root: dict[str, Any]) -> None:
        self.directory = directory
        self.file = directory / "tokenizer.json"
        self.root = root
        self.model = _mapping(root.get("model"), self.file, "model")
        if self.model.get("type", "BPE") != "BPE":
            raise TokenizerError(f"{self.file}: model.type: found {self.model.get('type')!r:.80}, wanted 'BPE'")
        for key in _UNSUPPORTED_PARTS:
            if self.model.get(key):
                raise TokenizerError(f"{self.file}: model.{key}: found {self.model[key]!r:.80}, wanted none")
        self.pieces = _pieces(self.model, self.file)
        self.special = self._special()
        ids = [*self.pieces.values(), *self.special]
        if not ids:
            raise TokenizerError(f"{self.file}: model.vocab is empty")
        self.size = max(ids) + 1
        self.prefix = SpacePrefix.NEVER
        self.prefixes_spaced = True

    def vocabulary(self, configs: list[dict[str, Any]], generation: list[dict[str, Any]]) -> Vocabulary:
        family = self._family()
        normalizer, pre_tokenizer = self._splitter(family)
        bos_id, eos_id, unknown_id = (self._named_id(configs, name) for name in ("bos_token", "eos_token", "unk_token"))
        ends = {token.token_id for token in self.special.values() if is_end(token)} | _end_ids(generation, self.size)
        if eos_id is not None:
            ends.add(eos_id)
        return Vocabulary(
            backend=self._backend(normalizer, pre_tokenizer),
            size=self.size,
            family=family,
            special=self.special,
            bos_id=bos_id,
            eos_id=eos_id,
            unknown_id=unknown_id,
            end_ids=frozenset(ends),
            adds_bos=self._adds(configs[0], "add_bos_token", bos_id, place=0),
            adds_eos=self._adds(configs[0], "add_eos_token", eos_id, place=-1),
            splits_at_words=False,  # the file may bring any pre-tokenizer
            space_prefix=self.prefix,
            prefixes_spaced=self.prefixes_spaced,
            chat_template=_chat_template(self.directory, configs[0]),
        )

    def _special(self) -> dict[int, SpecialToken]:
        special: dict[int, SpecialToken] = {}
        for index, entry in enumerate(_list(self.root.get("added_tokens"), self.file, "added_tokens")):
            added = _mapping(entry, self.file, f"added_tokens[{index}]")
            token_id: Any = added.get("id")
            text = added.get("content")
            if not _is_id(token_id) or not isinstance(text, str) or len(text) > MAX_PIECE_CHARS:
                raise TokenizerError(f"{self.file}: added_tokens[{index}]: wanted an id and a content")
            if any("\ud800" <= char <= "\udfff" for char in text):
                raise TokenizerError(f"{self.file}: added_tokens[{index}]: content is no Unicode text")
            for flag in ("single_word", "lstrip", "rstrip"):
                if added.get(flag):
                    raise TokenizerError(f"{self.file}: added token {text!r:.80}: {flag} is not supported")
            declared = TokenType.CONTROL if added.get("special") else TokenType.USER_DEFINED
            special[token_id] = SpecialToken(token_id, text, type_of(text, declared))
        return special

    def _backend(self, normalizer: Mapping[str, Any] | None, pre_tokenizer: Mapping[str, Any] | None) -> Backend:
        hidden = {token.text: token.token_id for token in self.special.values() if token.type in HIDDEN_TYPES}
        for text, token_id in hidden.items():
            if self.pieces.pop(text, token_id) != token_id:
                raise TokenizerError(f"{self.file}: added token {text!r:.80} has another id than the same piece")
            self.pieces[hidden_name(token_id)] = token_id
        if len(set(self.pieces.values())) != len(self.pieces):
            raise TokenizerError(f"{self.file}: model.vocab: two pieces have the same id")
        unknown = self.model.get("unk_token")
        if not (unknown is None or isinstance(unknown, str)):
            raise TokenizerError(f"{self.file}: model.unk_token: found {unknown!r:.80}, wanted a text")
        return build_backend(
            self.pieces.items(),
            self._merges(hidden),
            pre_tokenizer=pre_tokenizer,
            normalizer=normalizer,
            unknown=hidden_name(hidden[unknown]) if unknown in hidden else unknown,
            byte_fallback=bool(self.model.get("byte_fallback")),
            ignores_merges=bool(self.model.get("ignore_merges")),
            fuses_unknown=bool(self.model.get("fuse_unk")),
        )

    def _merges(self, hidden: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        for index, merge in enumerate(_list(self.model.get("merges"), self.file, "model.merges")):
            match merge.split(" ") if isinstance(merge, str) else merge:
                case [str(left), str(right)]:
                    pass
                case _:
                    raise TokenizerError(f"{self.file}: model.merges[{index}] is {merge!r:.80}, wanted two pieces")
            if not hidden or not (left in hidden or right in hidden or left + right in hidden):
                yield left, right

    def _family(self) -> Family:
        parts = [part for key in ("pre_tokenizer", "decoder") for part in _flat(self.root.get(key))]
        if any(part.get("type") == "ByteLevel" for part in parts):
            return Family.BYTE_LEVEL
        parts += _flat(self.root.get("normalizer"))
        if self.model.get("byte_fallback") or any(SPACE in json.dumps(p, ensure_ascii=False) for p in parts):
            return Family.SENTENCEPIECE
        raise TokenizerError(f"{self.file}: neither a byte-level nor a SentencePiece vocabulary")

    def _splitter(self, family: Family) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
        """Returns normalizer and pre-tokenizer without the parts that add a dummy space, and notes that space."""
        normalizers = []
        for part in _flat(self.root.get("normalizer")):
            if part.get("type") == "Prepend":
                self.prefix = SpacePrefix.ALWAYS
            elif part.get("type") == "Strip" and family is Family.SENTENCEPIECE:
                # it would meet text whose dummy space is there already and whose spaces are no spaces any more
                raise TokenizerError(f"{self.file}: normalizer: found 'Strip', not supported with SentencePiece spaces")
            else:
                normalizers.append(part)
        pre_tokenizers = []
        for part in _flat(self.root.get("pre_tokenizer")):
            if part.get("type") == "Metaspace":
                scheme = self._prepend_scheme(part)
                # after a Prepend every text begins with a space, before which Metaspace puts none
                if self.prefix is SpacePrefix.NEVER:
                    self.prefix, self.prefixes_spaced = scheme, False
                pre_tokenizers.append({**_METASPACE, "split": part.get("split", True)})
            else:
                pre_tokenizers.append(part)
        return (
            {"type": "Sequence", "normalizers": normalizers} if normalizers else None,
            {"type": "Sequence", "pretokenizers": pre_tokenizers} if pre_tokenizers else None,
        )

    def _prepend_scheme(self, metaspace: Mapping[str, Any]) -> SpacePrefix:
        default = "always" if metaspace.get("add_prefix_space", True) else "never"
        scheme = metaspace.get("prepend_scheme", default)
        try:
            return SpacePrefix(scheme)
        except ValueError as error:
            raise TokenizerError(f"{self.file}: prepend_scheme: found {scheme!r:.80}") from error

    def _named_id(self, configs: list[dict[str, Any]], name: str) -> int | None:
        """Returns the id of the token that the configuration names, None when it names none.

        An unk_token outside the vocabulary is none: the merging goes by the model's own.
        """
        for config in configs:
            value = config.get(name)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                for token in self.special.values():
                    if token.text == text:
                        return token.token_id
                if text in self.pieces:
                    return self.pieces[text]
                if name == "unk_token":
                    return None
                raise TokenizerError(f"{self.directory}: {name} is {text!r:.80}, which is not in the vocabulary")
        return None

    def _adds(self, config: dict[str, Any], flag: str, token_id: int | None, *, place: int) -> bool:
        """Returns the flag of tokenizer_config.json, else what the post-processor does at that place."""
        value = config.get(flag)
        if isinstance(value, bool):
            return value
        for part in _flat(self.root.get("post_processor")):
            single = part.get("single")
            if part.get("type") == "TemplateProcessing" and isinstance(single, list) and single:
                entry = _mapping(single[place], self.file, "post_processor.single")
                name = _mapping(entry.get("SpecialToken") or {}, self.file, "post_processor.single").get("id")
                return token_id is not None and token_id in self.special and self.special[token_id].text == name
        return False


def _read_json(path: Path, *, is_required: bool = False) -> dict[str, Any]:
    try:
        content = json.loads(read_plain_file(path, MAX_FILE_BYTES))
    except FileNotFoundError as error:
        if is_required:
            raise TokenizerError(f"{path}: missing") from error
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise TokenizerError(f"{path}: cannot be read as JSON ({error})") from error
    return _mapping(content, path, "root")


def _mapping(value: object, path: Path, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TokenizerError(f"{path}: {place}: found {type(value).__name__}, wanted an object")
    return value


def _list(value: object, path: Path, place: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise TokenizerError(f"{path}: {place}: found {type(value).__name__}, wanted a list")
    return value


def _pieces(model: dict[str, Any], path: Path) -> dict[str, int]:
    pieces = _mapping(model.get("vocab"), path, "model.vocab")
    for text, token_id in pieces.items():
        if not _is_id(token_id) or len(text) > MAX_PIECE_CHARS:
            raise TokenizerError(f"{path}: model.vocab: {text!r:.80} is {token_id!r:.80}, wanted an id")
    return pieces


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_VOCAB


def _flat(part: object) -> list[dict[str, Any]]:
    """Returns the members of a (nested) Sequence, or the part alone, or nothing for null."""
    if not isinstance(part, dict):
        return []
    for key in ("normalizers", "pretokenizers", "decoders", "processors"):
        if isinstance(part.get(key), list):
            return [leaf for member in part[key] for leaf in _flat(member)]
    return [part]


def _end_ids(configs: list[dict[str, Any]], size: int) -> set[int]:
    """Returns the ids of `eos_token_id` (a number or a list) in the first file that has the key."""
    for config in configs:
        value = config.get("eos_token_id")
        if value is not None:
            ids = value if isinstance(value, list) else [value]
            if not all(_is_id(token_id) and token_id < size for token_id in ids):
                raise TokenizerError(f"eos_token_id: found {value!r:.80}, wanted ids below {size}")
            return set(ids)
    return set()


def _chat_template(directory: Path, config: dict[str, Any]) -> str | None:
    """Returns the template in the file of its own, else that of tokenizer_config.json (the default of several)."""
    path = directory / _CHAT_TEMPLATE_NAME
    try:
        if path.is_file():
            return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{path}: cannot be read ({error})") from error
    template = config.get("chat_template")
    if isinstance(template, list):
        named = [entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default"]
        template = named[-1].get("template") if named else None
    return template if isinstance(template, str) else None
