"""A forward and a stream without a model: the next token is a function of everything that the KV pages hold before it.

Invariant: a key that is stale, lost or another sequence's changes the tokens that follow.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, cast

from sipd.engine.draft_model import DraftModel
from sipd.errors import StorageFault
from sipd.kernels import binding
from sipd.kernels.binding import PAGE_POSITIONS
from sipd.models.forward import Forward, ForwardShape, PassResult
from sipd.weights.stream import Stream, StreamCounters

if TYPE_CHECKING:
    Logits = ctypes._Pointer[ctypes.c_float]

VOCAB_SIZE = 101
LOAD_BYTES = 1000
Row = tuple[int, int, int, int]


def next_token(ids: Sequence[int]) -> int:
    """What follows `ids`."""
    return sum((i + 1) * (token + 1) for i, token in enumerate(ids)) % VOCAB_SIZE


def continuation(ids: Sequence[int], n: int) -> list[int]:
    """The `n` tokens that follow `ids`."""
    known = list(ids)
    for _ in range(n):
        known.append(next_token(known))
    return known[len(ids) :]


def greedy(logits: Logits, _i: int) -> int:
    """The token of the largest logit."""
    return max(range(VOCAB_SIZE), key=logits.__getitem__)


class FakeForward:
    """Keeps the rows of each pass in `passes`; a pass lasts `row_s` seconds a row."""

    def __init__(self, n_pages: int, max_rows: int, max_logit_rows: int) -> None:
        self.shape = ForwardShape(max_rows, max_logit_rows, n_pages, 1)
        self.control = binding.Control()
        self.row_s = 0.0
        self.passes: list[list[Row]] = []
        self.fails = False
        self.is_closed = False
        self._kv: dict[tuple[int, int], int] = {}
        self._logits = [(ctypes.c_float * VOCAB_SIZE)() for _ in range(max_logit_rows)]

    def run(self, rows: Sequence[Row], n_logits: int, pages: Sequence[Sequence[int]]) -> PassResult:
        """One pass, or none when it is cancelled or fails."""
        assert len(rows) <= self.shape.max_rows
        assert n_logits <= self.shape.max_logit_rows
        assert len({page for each in pages for page in each}) == sum(map(len, pages)), "two sequences share a page"
        if self.control.cancel or self.fails:
            return self._result(binding.PASS_CANCELLED if self.control.cancel else binding.PASS_FAULT, 0)
        self.passes.append(list(rows))
        for token, position, sequence, _ in rows:
            self._kv[pages[sequence][position // PAGE_POSITIONS], position % PAGE_POSITIONS] = token
        for _, position, sequence, logits_row in rows:
            if logits_row >= 0:
                history = [
                    self._kv[pages[sequence][at // PAGE_POSITIONS], at % PAGE_POSITIONS] for at in range(position + 1)
                ]
                self._logits[logits_row][:] = [0.0] * VOCAB_SIZE
                self._logits[logits_row][next_token(history)] = 1.0
        return self._result(binding.PASS_DONE, self.row_s * len(rows))

    def logits(self, row: int) -> Logits:
        """Logits of one row."""
        return ctypes.cast(self._logits[row], ctypes.POINTER(ctypes.c_float))

    def close(self) -> None:
        """Notes it."""
        self.is_closed = True

    @staticmethod
    def _result(status: int, total_s: float) -> PassResult:
        numbers: dict[str, Any] = {each.name: 0 for each in fields(PassResult)}
        return PassResult(**(numbers | {"status": status, "total_s": total_s}))


class FakeStream:
    """Storage that has read `loaded` bytes, and may have failed."""

    def __init__(self) -> None:
        self.loaded = LOAD_BYTES
        self.found: tuple[StorageFault, int] | None = None
        self.refused: list[tuple[StorageFault, int]] = []
        self.n_recovers = self.n_rewinds = 0
        self.is_closed = False

    def on_fallback(self, report: Callable[[str], None]) -> None:
        """Nothing to report."""

    def counters(self) -> StreamCounters:
        """What was read."""
        return StreamCounters(self.loaded, self.loaded, 0.0)

    def fault(self) -> tuple[StorageFault, int] | None:
        """The fault."""
        return self.found

    def recover_from(self, fault: StorageFault, error_number: int) -> bool:
        """Notes the fault; direct I/O is never to blame."""
        self.refused.append((fault, error_number))
        return False

    def recover(self) -> None:
        """Storage is back."""
        self.found = None
        self.n_recovers += 1

    def rewind(self) -> None:
        """Counts."""
        self.n_rewinds += 1

    def check_files(self) -> None:
        """They are as they were."""

    def close(self) -> None:
        """Notes it."""
        self.is_closed = True


class Fakes:
    """A draft model and what it stands on."""

    def __init__(self, n_pages: int = 16, max_rows: int = 64, max_logit_rows: int = 4, window: int = 256) -> None:
        self.forward = FakeForward(n_pages, max_rows, max_logit_rows)
        self.stream = FakeStream()
        self.model = DraftModel(
            cast("Forward", self.forward), cast("Stream", self.stream), load_bytes=LOAD_BYTES, window=window
        )

    def draft(self, key: object, ids: Sequence[int], n: int) -> list[int]:
        """Greedy drafts, from as many calls as it takes to catch up."""
        for _ in range(100):
            if drafts := self.model.draft(key, ids, n, greedy):
                return drafts
        raise AssertionError("no drafts in a hundred calls")
