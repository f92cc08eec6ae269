"""Loads a model file with any executor, plan, budget and threads, and runs passes by hand."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sipd.kernels import binding
from sipd.models.forward import Forward, ForwardShape, PassResult
from sipd.models.program import Program
from sipd.models.reference_forward import ReferenceForward
from sipd.models.registry import build_program
from sipd.models.small_tensors import read_f32
from sipd.weights.checkpoint import open_checkpoint
from sipd.weights.plain_source import PlainSource
from sipd.weights.plan import Plan, build_plan, choose_pinned
from sipd.weights.reader import WeightFiles
from sipd.weights.stream import Stream, shape_stream
from tests.unit.kernels.kernel_calls import F32, LIBRARY

N_PAGES = 24
MAX_LOGIT_ROWS = 16
PAGES = (tuple(range(0, 24, 2)), tuple(range(23, 12, -2)), (11, 9), (7, 5))  # of sequences 0 to 3, far apart
EVERYTHING = 1 << 40


@dataclass(frozen=True, slots=True)
class Setting:
    """How a model is run; none of it may change a bit."""

    isa: str = "auto"
    tile_bytes: int = 1 << 20
    pin: float = 0.0  # part of the plan that stays in memory
    threads: int = 1
    slots: int = 3
    readers: int = 2
    direct: str = "off"
    embedding_tiles: bool = False  # the embedding has tiles of its own, as when everything is resident


class LoadedModel:
    """One model, ready to run; a context manager."""

    def __init__(self, path: Path, setting: Setting) -> None:
        checkpoint = open_checkpoint(path)
        files = WeightFiles(checkpoint.files, checkpoint.file_sizes, direct=setting.direct)
        self.program: Program = build_program(checkpoint, lambda tensor: list(read_f32(LIBRARY, files, tensor)))
        groups = [[product.weight for product in step.products] for step in self.program.product_steps()]
        if setting.embedding_tiles and not self.program.is_tied:
            groups = [[self.program.embedding], *groups]
        self.plan: Plan = build_plan(groups, setting.tile_bytes)
        total = sum(extent.span_bytes for extent in self.plan.extents)
        self.pinned = choose_pinned(self.plan.extents, int(total * setting.pin))
        shape = ForwardShape(64, MAX_LOGIT_ROWS, N_PAGES, setting.threads)
        self.source: PlainSource | Stream
        self.forward: Forward | ReferenceForward
        if setting.isa == "numpy":
            self.source = plain = PlainSource(self.plan, files, self.pinned)
            self.forward = ReferenceForward(self.program, self.plan, plain, shape)
        else:
            stream_shape = shape_stream(self.plan, self.pinned, setting.slots, setting.readers)
            self.source = stream = Stream(LIBRARY, self.plan, files, stream_shape, drop_cache=False)
            self.forward = Forward(LIBRARY, self.program, self.plan, stream, files, shape, isa=setting.isa)

    def __enter__(self) -> LoadedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.forward.close()
        self.source.close()

    def run(self, rows: Sequence[tuple[int, int, int, int]]) -> PassResult:
        """One pass over rows of (token, position, sequence, logits row)."""
        n_logits = sum(row[3] >= 0 for row in rows)
        result = self.forward.run(rows, n_logits, PAGES)
        assert result.status == binding.PASS_DONE, self.source.fault()
        return result

    def logits(self, n_rows: int) -> F32:
        """Logits of the latest pass, (n_rows, vocab_size)."""
        n = self.program.hyperparameters.vocab_size
        return np.stack([np.ctypeslib.as_array(self.forward.logits(row), (n,)).copy() for row in range(n_rows)])

    def prompt_logits(self, tokens: Sequence[int], chunk: int = 0, *, last: int = 1) -> F32:
        """Logits of the `last` positions of a prompt of sequence 0, in passes of `chunk` rows (0: as many as fit)."""
        found: list[F32] = []
        first_wanted = len(tokens) - last
        chunk = min(chunk or 64, 64)
        for begin in range(0, len(tokens), chunk):
            rows: list[tuple[int, int, int, int]] = []
            n_logits = 0
            for position in range(begin, min(begin + chunk, len(tokens))):
                is_wanted = position >= first_wanted
                rows.append((tokens[position], position, 0, n_logits if is_wanted else -1))
                n_logits += is_wanted
            self.run(rows)
            if n_logits:
                found.append(self.logits(n_logits))
        return np.concatenate(found)


def tokens_of(n: int, vocab_size: int, seed: int = 0) -> list[int]:
    """A random prompt."""
    drawn: NDArray[np.int64] = np.random.default_rng(seed).integers(0, vocab_size, n)
    return [int(token) for token in drawn]


def set_cancel(forward: Forward | ReferenceForward, value: int) -> None:
    """Sets the flag that ends a pass."""
    forward.control.cancel = ctypes.c_int32(value).value
