"""Whether a draft model and its target mean the same by every token id.

Invariant: a vocabulary in a GGUF file is read piece by piece and never held; one in a tokenizer.json is only parsed
when the two files differ.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sized
from hashlib import blake2b
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, cast

from sipd.errors import ConfigError, ModelError
from sipd.weights.model_file import open_model_file, read_exactly
from sipd.weights.safetensors_header import parse_object
from sipd.weights.tensor_table import Checkpoint

SETTING = "draft_model"
_TOKENS, _MODEL = "tokenizer.ggml.tokens", "tokenizer.ggml.model"
_FILE_NAME = "tokenizer.json"
_MAX_FILE_BYTES = 64 << 20  # the largest public tokenizer.json has 34 MB
_MAX_IDS = 1 << 22
_CHUNK_BYTES = 256 << 10


def check_same_vocabulary(target: Checkpoint, target_size: int, draft: Checkpoint, draft_size: int) -> None:
    """Raises ConfigError naming the first difference; the sizes are rows of the output heads. Blocks for reads.

    Which of its tokens a model takes for its first or last is not compared: it changes no id's meaning.
    """
    if target_size != draft_size:
        raise ConfigError(
            SETTING, f"{draft.path} has {draft_size} tokens, wanted the {target_size} of the model {target.path}"
        )
    if _has_vocabulary(target) != _has_vocabulary(draft):
        lacking = target if _has_vocabulary(draft) else draft
        raise ConfigError(SETTING, f"{lacking.path} has no vocabulary to compare, wanted that of the other model")
    if not _has_vocabulary(target) or _are_equal_files(target, draft):
        return
    kinds = (target.metadata.get(_MODEL), draft.metadata.get(_MODEL))
    if None not in kinds and kinds[0] != kinds[1]:
        raise ConfigError(SETTING, f"{draft.path} has a vocabulary of kind {kinds[1]!r:.80}, wanted {kinds[0]!r:.80}")
    _compare(target, draft)


def _compare(target: Checkpoint, draft: Checkpoint) -> None:
    """Raises ConfigError unless every id that both name has one text."""
    digests = array("Q", (_digest(text) for text in _texts(target)))
    for token_id, (digest, text) in enumerate(zip_longest(digests, _texts(draft))):
        # ids past the end of a table, or left out of it, are padding of the head: nothing stands for them
        if digest and text is not None and digest != _digest(text):
            wanted = next(islice(_texts(target), token_id, None))
            raise ConfigError(
                SETTING, f"{draft.path}: token {token_id} is {text!r:.80}, wanted {wanted!r:.80} as in {target.path}"
            )


def _digest(text: str | None) -> int:
    """Eight bytes of a hash; 0 for an id without a text."""
    if text is None:
        return 0
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little") or 1


def _has_vocabulary(checkpoint: Checkpoint) -> bool:
    if checkpoint.file_format == "gguf":
        return isinstance(checkpoint.metadata.get(_TOKENS), Sized)
    return (checkpoint.path / _FILE_NAME).exists()


def _are_equal_files(target: Checkpoint, draft: Checkpoint) -> bool:
    """Whether both are directories whose tokenizer files are the same, byte for byte: then nothing is parsed."""
    if "gguf" in {target.file_format, draft.file_format}:
        return False
    return _file_digest(target.path / _FILE_NAME) == _file_digest(draft.path / _FILE_NAME)


def _file_digest(path: Path) -> bytes:
    file, identity = open_model_file(path, ModelError)
    digest = blake2b()
    with file:
        for at in range(0, identity.size, _CHUNK_BYTES):
            digest.update(read_exactly(file, path, at, min(_CHUNK_BYTES, identity.size - at), ModelError))
    return digest.digest()


def _texts(checkpoint: Checkpoint) -> Iterator[str | None]:
    """The text of each id in order, None where an id has none."""
    if checkpoint.file_format == "gguf":
        for text in cast("Any", checkpoint.metadata[_TOKENS]):
            if not isinstance(text, str):
                raise ModelError(f"{checkpoint.path}: {_TOKENS} holds {type(text).__name__}, wanted strings")
            yield text
        return
    by_id = _read_tokenizer(checkpoint.path / _FILE_NAME)
    for token_id in range(max(by_id, default=-1) + 1):
        yield by_id.get(token_id)


def _read_tokenizer(path: Path) -> dict[int, str]:
    """The texts of a tokenizer.json by their ids, added tokens included; raises ModelError."""
    file, identity = open_model_file(path, ModelError)
    with file:
        if identity.size > _MAX_FILE_BYTES:
            raise ModelError(f"{path}: found {identity.size} bytes, wanted at most {_MAX_FILE_BYTES}")
        root = parse_object(read_exactly(file, path, 0, identity.size, ModelError), path, _FILE_NAME)
    model = root.get("model")
    pieces = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(pieces, dict):
        raise ModelError(f"{path}: model.vocab is missing, wanted pieces with their ids")
    by_id = {token_id: text for text, token_id in pieces.items() if _is_id(token_id)}
    for added in root.get("added_tokens") or []:
        if isinstance(added, dict) and _is_id(added.get("id")) and isinstance(added.get("content"), str):
            by_id[added["id"]] = added["content"]
    return by_id


def _is_id(found: object) -> bool:
    return type(found) is int and 0 <= found < _MAX_IDS
