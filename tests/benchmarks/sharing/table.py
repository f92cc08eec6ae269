"""Markdown tables of figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sipd.size import format_size


@dataclass(frozen=True, slots=True)
class Table:
    """A title, a header, rows of cells, and remarks below."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    remarks: Sequence[str] = field(default_factory=tuple)

    def markdown(self) -> str:
        """The table with its title and remarks."""
        lines = [f"### {self.title}", "", _line(self.header), _line(["---"] * len(self.header))]
        lines += [_line(row) for row in self.rows]
        for remark in self.remarks:
            lines += ["", remark]
        return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def verdict(value: float, target: float) -> str:
    """Whether a ratio reaches its target."""
    return f"{'reached' if value >= target else 'MISSED'} (wanted {target:g})"


def rate_cell(read_bytes_per_s: int | None) -> str:
    """How fast reads were allowed to be."""
    return f"{read_bytes_per_s / 1e6:.0f} MB/s" if read_bytes_per_s else "full speed"


def place_cell(result: dict[str, int]) -> str:
    """Budget, and what of the model stays in memory under it."""
    return (
        f"budget {format_size(result['budget_bytes'])}: {result['pinned_bytes'] / 1e6:.0f} MB pinned, "
        f"{result['plan_bytes'] / 1e6:.0f} MB streamed a pass, at most {result['max_rows']} rows"
    )
