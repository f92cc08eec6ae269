"""A small chart as SVG text: lines with points over two axes, for `sipd bench --sweep`.

Invariant: equal series give equal bytes, and no text of a caller is written unescaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 860, 460
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 84, 56, 112
_LINE_HEIGHT = 18


@dataclass(frozen=True, slots=True)
class Series:
    """One line. `points` are (x, y), a None is a gap; `uses_right_axis` puts it on the second scale."""

    name: str
    colour: str
    points: Sequence[tuple[float, float | None]]
    is_dashed: bool = False
    uses_right_axis: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """Titles and series; axes begin at 0."""

    title: str
    subtitle: str
    x_label: str
    left_label: str
    right_label: str
    series: Sequence[Series]


def svg(chart: Chart) -> str:
    """Returns the chart as a whole SVG document."""
    xs = [x for series in chart.series for x, _ in series.points]
    x_axis = _Axis(0.0, max(xs, default=1.0), _LEFT, _WIDTH - _RIGHT)
    left = _Axis(0.0, _highest(chart, right=False), _HEIGHT - _BOTTOM, _TOP)
    right = _Axis(0.0, _highest(chart, right=True), _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_LEFT, 22, chart.title, size=16),
        _text(_LEFT, 41, chart.subtitle, colour="#555"),
        *_grid(x_axis, left, right),
        _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - _BOTTOM + 36, chart.x_label, anchor="middle"),
        _text(16, (_TOP + _HEIGHT - _BOTTOM) / 2, chart.left_label, anchor="middle", is_turned=True),
        _text(_WIDTH - 12, (_TOP + _HEIGHT - _BOTTOM) / 2, chart.right_label, anchor="middle", is_turned=True),
    ]
    for number, series in enumerate(chart.series):
        parts += _series(series, x_axis, right if series.uses_right_axis else left)
        parts += _legend(series, number)
    return "\n".join([*parts, "</svg>", ""])


class _Axis:
    """Maps values to pixels, with round ticks."""

    def __init__(self, low: float, high: float, begin: float, end: float) -> None:
        self.step = tick_step(high - low)
        self.low = low
        self.high = max(self.step, math.ceil(high / self.step) * self.step)
        self._begin, self._end = begin, end

    def at(self, value: float) -> float:
        """The pixel of a value."""
        return round(self._begin + (value - self.low) / (self.high - self.low) * (self._end - self._begin), 1)

    def ticks(self) -> list[float]:
        """Round values from low to high."""
        return [self.low + i * self.step for i in range(round((self.high - self.low) / self.step) + 1)]


def tick_step(span: float) -> float:
    """The step of 1, 2 or 5 times a power of ten that gives four to ten ticks."""
    if span <= 0:
        return 1.0
    power = float(10 ** math.floor(math.log10(span / 4)))
    return next((power * factor for factor in (1, 2, 5) if span / (power * factor) <= 8), 10 * power)


def _highest(chart: Chart, *, right: bool) -> float:
    ys = [y for series in chart.series if series.uses_right_axis is right for _, y in series.points if y is not None]
    return max(ys, default=1.0) or 1.0


def _grid(x_axis: _Axis, left: _Axis, right: _Axis) -> list[str]:
    parts: list[str] = []
    bottom = _HEIGHT - _BOTTOM
    for tick in x_axis.ticks():
        x = x_axis.at(tick)
        parts.append(f'<line x1="{x}" y1="{_TOP}" x2="{x}" y2="{bottom}" stroke="#eee"/>')
        parts.append(_text(x, bottom + 17, f"{tick:g}", anchor="middle"))
    for tick in left.ticks():
        y = left.at(tick)
        parts.append(f'<line x1="{_LEFT}" y1="{y}" x2="{_WIDTH - _RIGHT}" y2="{y}" stroke="#ddd"/>')
        parts.append(_text(_LEFT - 8, y + 4, f"{tick:g}", anchor="end"))
    parts += [_text(_WIDTH - _RIGHT + 8, right.at(tick) + 4, f"{tick:g}") for tick in right.ticks()]
    return parts


def _series(series: Series, x_axis: _Axis, y_axis: _Axis) -> list[str]:
    dash = ' stroke-dasharray="6 4"' if series.is_dashed else ""
    parts: list[str] = []
    run: list[str] = []
    for x, y in [*series.points, (0.0, None)]:
        if y is not None:
            run.append(f"{x_axis.at(x)},{y_axis.at(y)}")
            if not series.is_dashed:
                parts.append(f'<circle cx="{x_axis.at(x)}" cy="{y_axis.at(y)}" r="3" fill="{series.colour}"/>')
        elif run:
            path = " ".join(run)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{series.colour}" stroke-width="2"{dash}/>')
            run = []
    return parts


def _legend(series: Series, number: int) -> list[str]:
    x, y = _LEFT + number % 2 * 350, _HEIGHT - 44 + number // 2 * _LINE_HEIGHT
    dash = ' stroke-dasharray="6 4"' if series.is_dashed else ""
    line = f'<line x1="{x}" y1="{y}" x2="{x + 28}" y2="{y}" stroke="{series.colour}" stroke-width="2"{dash}/>'
    return [line, _text(x + 36, y + 4, series.name)]


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    size: int = 12,
    colour: str = "#222",
    is_turned: bool = False,
) -> str:
    turn = f' transform="rotate(-90 {x:g} {y:g})"' if is_turned else ""
    style = f'font-size="{size}" fill="{colour}" text-anchor="{anchor}"'
    return f'<text x="{x:g}" y="{y:g}" {style}{turn}>{escape(text)}</text>'
