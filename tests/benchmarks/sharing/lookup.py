"""Prompt lookup on a copying task and on free prose: streaming at full speed, throttled, and resident."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.sharing import speculation
from tests.benchmarks.sharing.case import MB_S_200, MIB, Setting
from tests.benchmarks.sharing.jobs import Job, run_job
from tests.benchmarks.sharing.prompts import COPYING, PROSE, Task
from tests.benchmarks.sharing.storage import storage_line
from tests.benchmarks.sharing.table import Table, place_cell, rate_cell, verdict

_COPYING_TARGET, _PROSE_TARGET = 2.0, 0.95


@dataclass(frozen=True, slots=True)
class Place:
    """Where the weights are, and how much there can be measured within some minutes."""

    name: str
    budget: int
    read_bytes_per_s: int | None
    repetitions: int
    copying: Sequence[Task]
    copying_tokens: int
    prose: Sequence[Task]
    prose_tokens: int


_STREAMING = Place("streaming", 80 * MIB, None, 5, COPYING, 200, PROSE, 96)
_THROTTLED = Place("streaming", 80 * MIB, MB_S_200, 3, COPYING[:1], 96, PROSE[:2], 32)
_RESIDENT = Place("resident", 384 * MIB, None, 5, COPYING, 200, PROSE, 200)


def tabulate_streaming(setting: Setting) -> Table:
    """A budget below the model, at full speed."""
    return _table(setting, _STREAMING)


def tabulate_throttled(setting: Setting) -> Table:
    """The same, throttled."""
    return _table(setting, _THROTTLED)


def tabulate_resident(setting: Setting) -> Table:
    """Nothing is streamed."""
    return _table(setting, _RESIDENT)


def _table(setting: Setting, place: Place) -> Table:
    repetitions = setting.repetitions or place.repetitions
    # a process for each kind: what one teaches the cost model is not the other's
    results = [
        run_job(
            Job(
                "speculation",
                setting.smollm2,
                place.budget,
                {"context": 640, "max_requests": 1},
                speculation.given(tasks, dict.fromkeys(("on", "off"), setting.tokens or n_tokens), repetitions),
                place.read_bytes_per_s,
                is_cold=True,
            )
        )
        for tasks, n_tokens in ((place.copying, place.copying_tokens), (place.prose, place.prose_tokens))
    ]
    tasks: list[dict[str, Any]] = [task for result in results for task in result["tasks"]]
    where = f"{place.name}, {rate_cell(place.read_bytes_per_s)}"
    copying, prose = (speculation.least_ratio(tasks, kind) for kind in ("copying", "prose"))
    return Table(
        f"lookup: prompt lookup, {setting.smollm2.name}, {where}",
        speculation.HEADER,
        speculation.rows(where, tasks),
        (
            f"{place_cell(results[0])}. Medians of {repetitions} turns on and off, A B A B.",
            f"Copying {verdict(copying, _COPYING_TARGET)}; prose at its worst {verdict(prose, _PROSE_TARGET)}.",
            storage_line(setting.smollm2, place.read_bytes_per_s),
        ),
    )
