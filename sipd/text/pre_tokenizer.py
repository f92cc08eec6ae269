r"""The table of pre-tokenizers that `tokenizer.ggml.pre` names, as pre-tokenizer JSON of the `tokenizers` package.

Invariant: an unknown name is refused, because a wrong split gives fluent nonsense. A missing name means "default".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sipd.errors import TokenizerError

_CONTRACTIONS = r"'s|'t|'re|'ve|'m|'ll|'d"
_GPT2 = _CONTRACTIONS + r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"
_LLAMA3 = _WORD + r"|\p{N}{1,3}" + _TAIL
_QWEN2 = _WORD + r"|\p{N}" + _TAIL
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Splits applied one after the other, and the two habits that come with the name."""

    patterns: tuple[str, ...]
    ignores_merges: bool = False  # a word that is a piece as a whole is that piece
    adds_bos: bool = False  # default where tokenizer.ggml.add_bos_token is missing

    def json(self) -> dict[str, Any]:
        """Returns the pre-tokenizer in the form of a tokenizer.json."""
        splits: list[dict[str, Any]] = [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
            for pattern in self.patterns
        ]
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
        return {"type": "Sequence", "pretokenizers": [*splits, byte_level]}


_BY_GPT2 = PreTokenizer((_GPT2,))
_BY_DIGIT = PreTokenizer((r"\p{N}", _GPT2))
_BY_LLAMA3 = PreTokenizer((_LLAMA3,), ignores_merges=True, adds_bos=True)
_BY_QWEN2 = PreTokenizer((_QWEN2,))
_DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(
    {
        "default": _DEFAULT,
        "gpt-2": _BY_GPT2,
        "phi-2": _BY_GPT2,
        "mpt": _BY_GPT2,
        "olmo": _BY_GPT2,
        "exaone4": _BY_GPT2,
        "jais": _BY_GPT2,
        "trillion": _BY_GPT2,
        "smollm": _BY_DIGIT,
        "starcoder": _BY_DIGIT,
        "refact": _BY_DIGIT,
        "command-r": _BY_DIGIT,
        "codeshell": _BY_DIGIT,
        "exaone": _BY_DIGIT,
        "minerva-7b": _BY_DIGIT,
        "llama3": _BY_LLAMA3,
        "llama-v3": _BY_LLAMA3,
        "llama-bpe": _BY_LLAMA3,
        "falcon3": _BY_LLAMA3,
        "pixtral": _BY_LLAMA3,
        "lfm2": _BY_LLAMA3,
        "dbrx": PreTokenizer((_LLAMA3,)),
        "smaug-bpe": PreTokenizer((_LLAMA3,)),
        "qwen2": _BY_QWEN2,
        "deepseek-r1-qwen": _BY_QWEN2,
        "megrez": _BY_QWEN2,
        "stablelm2": _BY_QWEN2,
        "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")),
        "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
        "tekken": PreTokenizer((_TEKKEN,), ignores_merges=True, adds_bos=True),
    }
)


def pre_tokenizer(name: str | None) -> PreTokenizer:
    """Returns the pre-tokenizer called `name`; None (no key in the file) means "default".

    Raises TokenizerError for a name that is not in the table.
    """
    found = PRE_TOKENIZERS.get("default" if name is None else name)
    if found is None:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise TokenizerError(f"tokenizer.ggml.pre: found {name!r:.80}, wanted one of {known}")
    return found
