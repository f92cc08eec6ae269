"""Fuzz target: a GGUF file, its arrays, tensor table, program and vocabulary.

Invariant: what loads lies inside the file.
"""

from __future__ import annotations

from sipd.errors import SipdError
from sipd.models.registry import build_program
from sipd.server.model_text import read_model_text
from sipd.weights.checkpoint import open_checkpoint
from sipd.weights.gguf_array import GgufArray
from tests.fuzz.bounds import bounded, check_message, folder

DICTIONARY = (b"GGUF", b"general.alignment", b"split.count", b"\x09\x00\x00\x00", b"tokenizer.ggml.tokens", b"blk.0.")


def TestOneInput(data: bytes) -> None:  # noqa: N802 - the name that fuzzers look for
    """Opens `data` as a model file."""
    path = folder() / "input.gguf"
    path.write_bytes(data)
    with bounded():
        checkpoint = open_checkpoint(path)
        for value in checkpoint.metadata.values():
            if isinstance(value, GgufArray):
                list(value)
        for tensor in checkpoint.tensors.values():
            assert 0 < tensor.file_offset <= tensor.file_offset + tensor.n_bytes <= len(data)
        try:
            build_program(checkpoint, lambda tensor: [1.0] * (tensor.n_bytes // 4))
        except SipdError as error:  # the vocabulary is read whether or not the weights are wanted
            check_message(error)
        read_model_text(checkpoint)
