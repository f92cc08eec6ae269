"""What rows cost to compute, learned from passes: so much each, and so much for every position that they look back on.

Invariant: neither cost is ever below zero, and a pass of rows at the start of a text is enough for a first answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_KEPT = 0.8  # of what older passes say, at each new one: five passes make a change of the machine felt
_ALIKE = 1e-3  # passes whose positions grow with their rows this nearly do not tell the two costs apart


@dataclass(slots=True)
class RowCost:
    """Least squares through the newest passes: seconds = rows x a row's cost + positions x a position's."""

    row_s: float = 0.0
    position_s: float = 0.0
    is_known: bool = False
    # decayed sums of products of rows, positions and seconds
    _rr: float = 0.0
    _rp: float = 0.0
    _pp: float = 0.0
    _rs: float = 0.0
    _ps: float = 0.0

    def add(self, n_rows: float, n_positions: float, seconds: float) -> None:
        """One pass: rows (some), the sum of the positions that each of them attends to, compute seconds of both."""
        self._rr = _KEPT * self._rr + n_rows * n_rows
        self._rp = _KEPT * self._rp + n_rows * n_positions
        self._pp = _KEPT * self._pp + n_positions * n_positions
        self._rs = _KEPT * self._rs + n_rows * seconds
        self._ps = _KEPT * self._ps + n_positions * seconds
        self.is_known = True
        self._solve()

    def _solve(self) -> None:
        apart = self._rr * self._pp - self._rp * self._rp
        if apart > _ALIKE * self._rr * self._pp:
            row_s = (self._rs * self._pp - self._ps * self._rp) / apart
            position_s = (self._ps * self._rr - self._rs * self._rp) / apart
            if row_s >= 0.0 and position_s >= 0.0:
                self.row_s, self.position_s = row_s, position_s
                return
            if row_s < 0.0:
                self.row_s, self.position_s = 0.0, max(0.0, self._ps / self._pp)
                return
            self.position_s = 0.0
        # the position's cost as it was known, and what is left for the rows
        self.row_s = max(0.0, (self._rs - self.position_s * self._rp) / self._rr)

    def rows_in(self, seconds: float, first_position: int) -> float:
        """Rows of one text, from `first_position` on, that are computed in `seconds`; may be infinite."""
        if seconds <= 0.0:
            return 0.0
        each = self.row_s + self.position_s * first_position
        if self.position_s <= 0.0:
            return seconds / each if each > 0.0 else math.inf
        # each x n + position_s x n^2 / 2 = seconds, in the form that does not cancel
        return 2.0 * seconds / (each + math.sqrt(each * each + 2.0 * self.position_s * seconds))
