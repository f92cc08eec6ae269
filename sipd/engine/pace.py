"""What a pass costs, learned from the passes that ran: how many rows storage hides, and what one row more takes.

A pass takes max(storage, compute) seconds and the part of the lower one that is not hidden behind the other: where
attention over a long text holds the tiles up, the ring fills and storage has to wait. Owned by the engine thread.
Invariant: it only ever decides how rows are spread over passes, never what they compute.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from sipd.engine.row_cost import RowCost

_WEIGHT = 0.2  # of the newest pass: five passes make a change of the machine felt
_FEW_ROWS, _MANY_ROWS = 16, 32  # passes up to, and from, which the line through compute times is drawn
GAP_GROWTH = 1.25  # what prompts may add to the time between two tokens of those who decode ...
FREE_GAP_S = 0.1  # ... and a gap that nobody minds
MIN_CHUNK = 16  # rows that a prompt gets beside decoders, whatever they cost
UNKNOWN_CHUNK = 64  # as long as nothing is known


@dataclass(slots=True)
class _Mean:
    """What was measured in passes of one kind, the newest weighing most."""

    value: float = 0.0
    is_known: bool = False

    def add(self, value: float) -> None:
        weight = _WEIGHT if self.is_known else 1.0
        self.value += weight * (value - self.value)
        self.is_known = True


class Pace:
    """The cost model of one engine."""

    def __init__(self, configured_cap: int | None, max_rows: int) -> None:
        self._configured_cap = configured_cap
        self._max_rows = max_rows
        self._few_rows, self._few_positions, self._few_s = _Mean(), _Mean(), _Mean()  # of passes of few rows
        self._storage_s, self._unhidden = _Mean(), _Mean()
        self._cost = RowCost()
        self._early: deque[tuple[int, int, float]] = deque(maxlen=5)  # passes of many rows before the first of few

    def observe(
        self, n_rows: int, compute_s: float, storage_s: float, n_positions: int = 0, total_s: float | None = None
    ) -> None:
        """One whole pass: `compute_s` without waits, `storage_s` in which reads were in flight.

        `n_positions`: positions that its rows look back on, summed; `total_s`: from its begin to its end.
        """
        if n_rows <= _FEW_ROWS:
            self._few_rows.add(n_rows)
            self._few_positions.add(n_positions)
            self._few_s.add(compute_s)
            self._storage_s.add(storage_s)
            while self._early:
                self._add_rows(*self._early.popleft())
        elif not self._few_s.is_known:
            if n_rows >= _MANY_ROWS:
                self._early.append((n_rows, n_positions, compute_s))
        elif n_rows >= _MANY_ROWS or self._cost.is_known:
            self._add_rows(n_rows, n_positions, compute_s)
            lower = min(compute_s, self._storage_s.value)
            if total_s is not None and lower > 0.0:
                unhidden_s = total_s - max(compute_s, self._storage_s.value)
                self._unhidden.add(min(1.0, max(0.0, unhidden_s / lower)))

    def _add_rows(self, n_rows: int, n_positions: int, compute_s: float) -> None:
        """Rows beyond those of a pass of few, which its fixed part and the decoders' positions are put down to."""
        more = max(0.0, n_positions - self._few_positions.value)
        self._cost.add(n_rows - self._few_rows.value, more, max(0.0, compute_s - self._few_s.value))

    @property
    def row_s(self) -> float | None:
        """Compute seconds of one more row at the start of a text; None as long as it is not known."""
        if not (self._few_s.is_known and self._cost.is_known):
            return None
        return max(1e-9, self._cost.row_s)

    def pass_s(self, n_rows: int) -> float | None:
        """Seconds that a pass of `n_rows` takes; None as long as it is not known."""
        per_row = self.row_s
        if per_row is None:
            return None
        compute = self._few_s.value + (n_rows - self._few_rows.value) * per_row
        return max(self._storage_s.value, compute, 1e-9)

    def row_cap(self, n_decoders: int, first_position: int = 0) -> int:
        """Rows of a pass while `n_decoders` sequences decode, their own rows included.

        `first_position`: where the prompt goes on that gets the others.
        """
        if self._configured_cap is not None:
            return min(self._max_rows, max(self._configured_cap, n_decoders + 1))
        alone = self.pass_s(n_decoders)
        if alone is None:
            return min(self._max_rows, n_decoders + UNKNOWN_CHUNK)
        compute_s = self._compute_within(max(GAP_GROWTH * alone, FREE_GAP_S))
        rows = self._few_rows.value + self._cost.rows_in(compute_s - self._few_s.value, first_position)
        return min(self._max_rows, max(n_decoders + MIN_CHUNK, int(min(self._max_rows, rows))))

    def _compute_within(self, gap_s: float) -> float:
        """Compute seconds of a pass that takes `gap_s`."""
        storage_s, unhidden = self._storage_s.value, self._unhidden.value
        if unhidden > 0.0 and gap_s < (1.0 + unhidden) * storage_s:
            return (gap_s - storage_s) / unhidden  # storage binds
        return gap_s - unhidden * storage_s
