"""A draft model on a real pair: against the same engine without guesses, and against no draft model in its memory."""

from __future__ import annotations

from typing import Any

from tests.benchmarks.sharing import speculation
from tests.benchmarks.sharing.case import MB_S_200, MIB, Setting
from tests.benchmarks.sharing.jobs import Job, run_job
from tests.benchmarks.sharing.prompts import CODE, PROSE
from tests.benchmarks.sharing.storage import storage_line
from tests.benchmarks.sharing.table import Table, place_cell, rate_cell

# With the small budget the target streams with and without a draft model; with the other one it would nearly fit alone
_SMALL, _ROOMY = 704 * MIB, 1024 * MIB
_TOKENS, _REPETITIONS = 24, 1
_TOKENS_OFF = 8  # seconds each, and all alike
_TASKS = (*CODE, PROSE[0])


def tabulate_small(setting: Setting) -> Table:
    """A budget that streams most of the target."""
    return _table(setting, _SMALL)


def tabulate_roomy(setting: Setting) -> Table:
    """A budget in which the draft model takes the place of weights that could all but stay."""
    return _table(setting, _ROOMY)


def _table(setting: Setting, budget: int) -> Table:
    """Three ways to spend the same budget; needs `target` and `draft`."""
    assert setting.target is not None, "the case draft wants --target and --draft"
    assert setting.draft is not None, "the case draft wants --target and --draft"
    settings: dict[str, Any] = {"context": 512, "max_requests": 1}
    n_tokens, repetitions = setting.tokens or _TOKENS, setting.repetitions or _REPETITIONS
    given = speculation.given(_TASKS, {"on": n_tokens, "off": min(n_tokens, _TOKENS_OFF)}, repetitions)
    plain = speculation.given(_TASKS, {"off": n_tokens}, repetitions)
    paired, alone = (
        run_job(Job("speculation", setting.target, budget, settings | more, what, MB_S_200, is_cold=True))
        for more, what in (({"draft_model": str(setting.draft)}, given), ({"speculation": False}, plain))
    )
    rate = rate_cell(MB_S_200)
    return Table(
        f"draft: {setting.draft.name} drafts for {setting.target.name}, {rate}",
        (*speculation.HEADER, "no draft model, tokens/s", "over that"),
        rows(rate, paired["tasks"], alone["tasks"]),
        (
            f"With the draft model: {place_cell(paired)}.",
            f"Without it: {place_cell(alone)}; its weights are pinned in the draft model's place.",
            f"Medians of {repetitions}.",
            storage_line(setting.target, MB_S_200),
        ),
    )


def rows(place: str, paired: list[dict[str, Any]], alone: list[dict[str, Any]]) -> list[list[str]]:
    """The rows of speculation, with the engine that has no draft model beside them."""
    found = []
    for cells, with_draft, without in zip(speculation.rows(place, paired), paired, alone, strict=True):
        plain = speculation.rate(without, "off")
        is_same = speculation.has_equal_ids({"on": with_draft["on"], "off": with_draft["off"] + without["off"]})
        cells[-1] = "equal" if is_same else "DIFFERENT"
        over = speculation.rate(with_draft, "on") / plain if plain else 0.0
        found.append([*cells, f"{plain:.2f}", f"{over:.2f}"])
    return found
