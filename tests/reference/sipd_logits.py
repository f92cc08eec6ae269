"""Logits of every position by sipd's own passes, which the daemon computes only where it samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sipd.engine.kv_cache import pages_for
from sipd.kernels import binding
from sipd.models.forward import Forward, ForwardShape
from sipd.models.registry import build_program
from sipd.models.small_tensors import read_f32
from sipd.weights.checkpoint import open_checkpoint
from sipd.weights.plan import build_plan
from sipd.weights.reader import WeightFiles
from sipd.weights.stream import Stream, shape_stream

ROWS = 128  # rows of a pass, each with its logits


def sipd_logits(model: Path, windows: Sequence[Sequence[int]], isa: str = "auto") -> NDArray[np.float32]:
    """Returns (all positions, vocab_size) f32, the windows one after the other, each a sequence of its own."""
    library = binding.load_library()
    checkpoint = open_checkpoint(model)
    files = WeightFiles(checkpoint.files, checkpoint.file_sizes, direct="auto")
    program = build_program(checkpoint, lambda tensor: list(read_f32(library, files, tensor)))
    plan = build_plan([[product.weight for product in step.products] for step in program.product_steps()], 1 << 20)
    stream = Stream(library, plan, files, shape_stream(plan, frozenset(), 8, 4), drop_cache=False)
    n_pages = pages_for(max(map(len, windows)))
    forward = Forward(library, program, plan, stream, files, ForwardShape(ROWS, ROWS, n_pages, 2), isa=isa)
    vocab_size = program.hyperparameters.vocab_size
    logits = np.empty((sum(map(len, windows)), vocab_size), np.float32)
    at = 0
    try:
        for window in windows:
            for first in range(0, len(window), ROWS):
                part = window[first : first + ROWS]
                rows = [(token, first + index, 0, index) for index, token in enumerate(part)]
                result = forward.run(rows, len(rows), [list(range(n_pages))])
                assert result.is_done, stream.fault()
                for index in range(len(part)):
                    logits[at] = np.ctypeslib.as_array(forward.logits(index), (vocab_size,))
                    at += 1
    finally:
        forward.close()
        stream.close()
    return logits
