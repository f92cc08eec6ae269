"""Small vocabularies for the tests of sipd.text."""

from __future__ import annotations

from sipd.text.byte_alphabet import BYTE_OF_CHAR
from sipd.text.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
KEY = "tokenizer.ggml."

GPT2_PIECES = ["th", "he", "the", "\u0120t", "\u0120the", "in", "\u0120a", "</", "s>", "</s>"]
GPT2_MERGES = ["t h", "h e", "th e", "\u0120 t", "\u0120t he", "i n", "\u0120 a", "< /", "s >", "</ s>"]
BOS, EOS, IM_START, IM_END, THINK, UNTHINK = range(6)


def gpt2_metadata(**changes: object) -> dict[str, object]:
    """Return byte-level metadata: six special tokens, the 256 bytes, a few merges; None removes a key."""
    special = ["<|begin|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    alphabet = sorted(BYTE_OF_CHAR, key=BYTE_OF_CHAR.__getitem__)
    tokens = [*special, *alphabet, *GPT2_PIECES]
    metadata: dict[str, object] = {
        f"{KEY}model": "gpt2",
        f"{KEY}pre": "llama-bpe",
        f"{KEY}tokens": tokens,
        f"{KEY}token_type": [CONTROL] * 4 + [USER_DEFINED] * 2 + [NORMAL] * (len(tokens) - 6),
        f"{KEY}merges": list(GPT2_MERGES),
        f"{KEY}bos_token_id": BOS,
        f"{KEY}eos_token_id": EOS,
        f"{KEY}add_bos_token": False,
    }
    return _changed(metadata, changes)


SPM_PIECES = [
    "\u2581",
    "t",
    "h",
    "e",
    "a",
    "s",
    ">",
    "<",
    "th",
    "the",
    "\u2581the",
    "\u2581a",
    "\u2581\u2581",
    "<s",
    "<s>",
]


def spm_metadata(**changes: object) -> dict[str, object]:
    """Return SentencePiece metadata: <unk>, <s>, </s>, 256 bytes, a few pieces; the later the lower the score."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *SPM_PIECES[:-1]]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * (len(SPM_PIECES) - 1)
    metadata: dict[str, object] = {
        f"{KEY}model": "llama",
        f"{KEY}tokens": tokens,
        f"{KEY}token_type": types,
        f"{KEY}scores": [0.0] * 259 + [-float(index) for index in range(len(SPM_PIECES) - 1)],
        f"{KEY}bos_token_id": 1,
        f"{KEY}eos_token_id": 2,
        f"{KEY}unknown_token_id": 0,
    }
    return _changed(metadata, changes)


def _changed(metadata: dict[str, object], changes: dict[str, object]) -> dict[str, object]:
    metadata.update({KEY + name: value for name, value in changes.items()})
    return {key: value for key, value in metadata.items() if value is not None}


def gpt2(**changes: object) -> Tokenizer:
    """Return the tokenizer of `gpt2_metadata`."""
    return Tokenizer.from_gguf(gpt2_metadata(**changes))


def spm(**changes: object) -> Tokenizer:
    """Return the tokenizer of `spm_metadata`."""
    return Tokenizer.from_gguf(spm_metadata(**changes))
