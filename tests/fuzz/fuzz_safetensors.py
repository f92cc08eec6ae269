"""Fuzz target: a checkpoint directory of one shard; parts of the input are its files.

Invariant: what loads lies inside its file.
"""

from __future__ import annotations

from sipd.models.registry import build_program
from sipd.weights.checkpoint import open_checkpoint
from sipd.weights.safetensors import CONFIG_NAME, INDEX_NAME, SINGLE_NAME
from tests.fuzz.bounds import SEPARATOR, bounded, folder

SHARD_NAME = "model-00001-of-00001.safetensors"
DICTIONARY = (SEPARATOR, b'"shape":', b'"data_offsets":', b'"__metadata__":', b'"BF16"', b"[[[[", b"1e999", b"\\ud800")


def TestOneInput(data: bytes) -> None:  # noqa: N802 - the name that fuzzers look for
    """Opens config.json and weights, or config.json, index and shard."""
    directory = folder() / "checkpoint"
    directory.mkdir(exist_ok=True)
    for path in directory.iterdir():
        path.unlink()
    parts = data.split(SEPARATOR, 2)
    names = (CONFIG_NAME, INDEX_NAME, SHARD_NAME) if len(parts) == 3 else (CONFIG_NAME, SINGLE_NAME)
    for name, part in zip(names, parts, strict=False):
        (directory / name).write_bytes(part)
    with bounded():
        checkpoint = open_checkpoint(directory)
        for tensor in checkpoint.tensors.values():
            assert 0 < tensor.file_offset <= tensor.file_offset + tensor.n_bytes
            assert tensor.file_offset + tensor.n_bytes <= checkpoint.file_sizes[tensor.file_index]
        build_program(checkpoint, lambda _tensor: [])
