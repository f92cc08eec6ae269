"""The gap between a decoder's tokens while a long prompt arrives, with the cap on rows and without it."""

from __future__ import annotations

import time
from typing import Any

from sipd.bench_load import prompt_ids
from tests.benchmarks.sharing.asking import gaps_between, middle, send, warm_up
from tests.benchmarks.sharing.bench import Bench
from tests.benchmarks.sharing.case import MB_S_200, MIB, Setting
from tests.benchmarks.sharing.jobs import Job, run_job
from tests.benchmarks.sharing.storage import storage_line
from tests.benchmarks.sharing.table import Table, place_cell, rate_cell

_PROMPT_TOKENS = 2000
_DECODER_TOKENS = 480  # outlasts 2,000 rows in the smallest chunks there are
_BEFORE = 8  # tokens of the decoder before the prompt comes
_REPETITIONS = 3
_NO_CAP = 1 << 20
_CONTEXT = 2560  # 80 KV pages: the prompt's 63, and 16 of the decoder
# pin off: every weight is streamed, while the budget has room for passes of 2,000 rows
_PLACES: tuple[tuple[str, int, dict[str, Any], int | None], ...] = (
    ("streaming", 768 * MIB, {"pin": False}, MB_S_200),
    ("resident", 768 * MIB, {}, None),
)


def measure(bench: Bench, given: dict[str, Any]) -> dict[str, Any]:
    """Medians over the repetitions of a decoder's gaps before and while the prompt is computed, and its first token."""
    engine = bench.engine
    warm_up(engine, prompt_ids(0, 256, engine.vocab_size))
    before, longest, typical, first_token, n_tokens = [], [], [], [], []
    for number in range(int(given["repetitions"])):
        name = f"decoder-{number}"
        request, decoder = send(engine, prompt_ids(1 + 2 * number, 16, engine.vocab_size), _DECODER_TOKENS, name)
        while len(decoder.times) < _BEFORE and not decoder.done.wait(0.005):
            pass
        came = time.monotonic()
        newcomer_prompt = prompt_ids(2 + 2 * number, int(given["prompt_tokens"]), engine.vocab_size)
        newcomer = send(engine, newcomer_prompt, 1, f"newcomer-{number}")[1]
        newcomer.wait()
        n_then = len(decoder.times)
        while len(decoder.times) <= n_then and not decoder.done.wait(0.005):  # the gap that the last chunk made
            pass
        engine.cancel(request)
        decoder.wait(may_fail=True)
        there = newcomer.times[0]
        gaps = gaps_between(decoder.times, came, there)
        before.append(middle(gaps_between(decoder.times, decoder.times[0], came)[:-1]))
        longest.append(max(gaps))
        typical.append(middle(gaps))
        first_token.append(there - came)
        n_tokens.append(len(gaps))
    return {
        "before_s": middle(before),
        "longest_s": middle(longest),
        "worst_s": max(longest),
        "median_s": middle(typical),
        "first_token_s": middle(first_token),
        "decoder_tokens": middle(n_tokens),
    }


def tabulate(setting: Setting) -> Table:
    """Streaming and resident, with the cap and without."""
    given = {"prompt_tokens": _PROMPT_TOKENS, "repetitions": setting.repetitions or _REPETITIONS}
    rows, remarks = [], []
    for place, budget, settings, rate in _PLACES:
        for is_capped in (True, False):
            more = {} if is_capped else {"rows_while_decoding": _NO_CAP}
            all_settings = {"context": _CONTEXT, "max_requests": 4} | settings | more
            result = run_job(Job("gap", setting.smollm2, budget, all_settings, given, rate, is_cold=True))
            rows.append(row(f"{place}, {rate_cell(rate)}", is_capped=is_capped, result=result))
        remarks.append(f"{place}: {place_cell(result)}.")
    return Table(
        f"gap: a prompt of {_PROMPT_TOKENS} tokens arrives beside one decoder, {setting.smollm2.name}",
        (
            "weights",
            "cap",
            "gap before, ms",
            "longest gap, ms",
            "worst of all",
            "median gap, ms",
            "decoder's tokens",
            "prompt's first token, s",
        ),
        rows,
        (*remarks, storage_line(setting.smollm2, MB_S_200)),
    )


def row(place: str, *, is_capped: bool, result: dict[str, Any]) -> list[str]:
    """One row; gaps in milliseconds."""
    cap = f"by measurement ({result['row_cap']} rows)" if is_capped else f"none ({result['max_rows']} rows)"
    return [
        place,
        cap,
        *(f"{1e3 * result[name]:.0f}" for name in ("before_s", "longest_s", "worst_s", "median_s")),
        f"{result['decoder_tokens']:.0f}",
        f"{result['first_token_s']:.2f}",
    ]
