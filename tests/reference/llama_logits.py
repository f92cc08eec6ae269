"""Logits of a GGUF by llama.cpp: `python llama_logits.py MODEL IDS.json OUT.npy`, in an environment with it.

Settings are llama.cpp's defaults on two threads. Windows and output as in oracle_logits.py.
"""

# mypy: disable-error-code="import-not-found"
from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from llama_cpp import Llama


def main() -> None:
    """Computes and saves."""
    model_path, ids_path, out_path = map(Path, sys.argv[1:4])
    windows = json.loads(ids_path.read_text())
    longest = max(map(len, windows))
    model = Llama(
        str(model_path), n_ctx=longest, n_batch=longest, n_threads=2, n_threads_batch=2, logits_all=True, verbose=False
    )
    parts = []
    for window in windows:
        model.reset()
        model.eval(window)
        parts.append(np.array(model.scores[: len(window)], np.float32))
    np.save(out_path, np.concatenate(parts))


if __name__ == "__main__":
    main()
