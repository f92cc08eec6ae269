"""Tiny vocabularies for models that tests build: byte-level BPE and SentencePiece, in GGUF metadata form.

Invariant: any text can be encoded with either, and the metadata are complete.
"""

from __future__ import annotations

from itertools import product

from sipd.weights.gguf_array import ValueType
from tests.gguf_writer import Typed

_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6  # llama_token_type
_LETTERS = "etaoinshrdlu"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
GPT2_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SPM_SPECIALS = ("<unk>", "<s>", "</s>")


def byte_characters() -> list[str]:
    """Returns the printable character that stands for each byte in GPT-2's byte-level BPE."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(shifted)) for byte in range(256)]


def gpt2_metadata(vocab_size: int) -> dict[str, object]:
    """Returns the tokenizer keys of a byte-level BPE vocabulary: 3 specials, 256 bytes, then pairs of letters."""
    n_merges = vocab_size - len(GPT2_SPECIALS) - 256
    pairs = _pairs(n_merges, "\u0120")
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*GPT2_SPECIALS, *byte_characters(), *(first + second for first, second in pairs)],
        "tokenizer.ggml.token_type": [_CONTROL] * len(GPT2_SPECIALS) + [_NORMAL] * (vocab_size - len(GPT2_SPECIALS)),
        "tokenizer.ggml.merges": Typed([f"{first} {second}" for first, second in pairs], ValueType.STRING),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def spm_metadata(vocab_size: int) -> dict[str, object]:
    """Returns the tokenizer keys of a SentencePiece vocabulary: 3 specials, 256 byte pieces, letters, pairs."""
    singles = ["\u2581", *_LETTERS]
    n_pairs = vocab_size - len(SPM_SPECIALS) - 256 - len(singles)
    pieces = [first + second for first, second in _pairs(n_pairs, "\u2581")]
    first_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    # Later pieces score lower; pairs outrank single letters, as in a trained model.
    scores = [0.0] * (len(SPM_SPECIALS) + 256) + [-1000.0 - i for i in range(len(singles))]
    scores += [-1.0 - i for i in range(len(pieces))]
    n_plain = len(singles) + len(pieces)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [*SPM_SPECIALS, *first_bytes, *singles, *pieces],
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [_UNKNOWN, _CONTROL, _CONTROL] + [_BYTE] * 256 + [_NORMAL] * n_plain,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
    }


def _pairs(n_pairs: int, space: str) -> list[tuple[str, str]]:
    """Returns `n_pairs` distinct pairs of a letter or space and a letter; raises ValueError when there are too few."""
    known = [(first, second) for first, second in product(_LETTERS + space, _LETTERS)]
    if not 0 <= n_pairs <= len(known):
        raise ValueError(f"{n_pairs} pairs wanted, 0 to {len(known)} can be had: choose vocab_size accordingly")
    return known[:n_pairs]
