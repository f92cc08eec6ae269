"""Tells one version of a checkpoint from another without reading all of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from sipd.errors import ModelError
from sipd.weights.model_file import open_model_file, read_exactly

_N_SAMPLES = 64
_SAMPLE_BYTES = 4096


def fingerprint(files: Sequence[Path]) -> bytes:
    """SHA-256 over names, sizes, times of change and evenly spread samples of `files`; raises ModelError."""
    digest = hashlib.sha256()
    for path in files:
        file, identity = open_model_file(path, ModelError)
        with file:
            digest.update(f"{path.name}\0{identity.size}\0{identity.modified_ns}\0".encode())
            last = max(0, identity.size - _SAMPLE_BYTES)
            for index in range(_N_SAMPLES):
                offset = last * index // (_N_SAMPLES - 1)
                n_bytes = min(_SAMPLE_BYTES, identity.size - offset)
                digest.update(read_exactly(file, path, offset, n_bytes, ModelError))
    return digest.digest()
