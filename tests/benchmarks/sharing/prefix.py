"""A long prompt asked again: first token cold, from memory, and from disk after a restart; ids must be equal."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from sipd.bench_load import prompt_ids
from tests.benchmarks.sharing.asking import middle, send, warm_up
from tests.benchmarks.sharing.bench import Bench
from tests.benchmarks.sharing.case import MB_S_90, MIB, Setting
from tests.benchmarks.sharing.jobs import Job, run_job
from tests.benchmarks.sharing.storage import storage_line
from tests.benchmarks.sharing.table import Table, place_cell, rate_cell

_PROMPT_TOKENS = 2000
_TOKENS = 16
_REPETITIONS = 3
_BUDGET = 180 * MIB
_STILL_S, _STILL_LIMIT_S = 0.5, 30.0


def measure(bench: Bench, given: dict[str, Any]) -> dict[str, Any]:
    """Each prompt `given["times"]` times: ids, seconds to the first token, tokens from memory and from disk."""
    engine = bench.engine
    warm_up(engine, prompt_ids(0, 64, engine.vocab_size), 2)
    turns = []
    for number in range(1, int(given["prompts"]) + 1):
        prompt = prompt_ids(number, int(given["prompt_tokens"]), engine.vocab_size)
        for _ in range(int(given["times"])):
            watch = send(engine, prompt, int(given["tokens"]), "client", uses_prefix_cache=True)[1]
            usage = watch.wait().usage
            turns.append(
                {
                    "prompt": number,
                    "first_token_s": usage.first_token_s,
                    "cached_tokens": usage.cached_tokens,
                    "restored_tokens": usage.restored_tokens,
                    "ids": watch.ids,
                }
            )
            _wait_until_written(Path(given["folder"]))
    return {"turns": turns}


def _wait_until_written(folder: Path) -> None:
    """Returns when the folder has not changed for a while: pages being written are nobody else's."""
    seen, end = None, time.monotonic() + _STILL_LIMIT_S
    while time.monotonic() < end:
        now = sorted((path.name, path.stat().st_size) for path in folder.rglob("*") if path.is_file())
        if now == seen:
            return
        seen = now
        time.sleep(_STILL_S)


def tabulate(setting: Setting) -> Table:
    """At full speed and throttled: one process computes and repeats, another one restores."""
    rows, remarks = [], []
    for rate in (None, MB_S_90):
        with tempfile.TemporaryDirectory(dir=setting.work) as folder:
            settings = {"context": 2304, "max_requests": 2, "snapshot_dir": folder}
            given = {
                "prompts": setting.repetitions or _REPETITIONS,
                "prompt_tokens": _PROMPT_TOKENS,
                "tokens": setting.tokens or _TOKENS,
                "folder": folder,
            }
            first, again = (
                run_job(Job("prefix", setting.smollm2, _BUDGET, settings, given | {"times": times}, rate, is_cold=True))
                for times in (2, 1)
            )
        rows += rows_of(rate_cell(rate), first["turns"], again["turns"])
        remarks.append(f"{rate_cell(rate)}: {place_cell(first)}. {storage_line(setting.smollm2, rate)}")
    return Table(
        f"prefix: a prompt of {_PROMPT_TOKENS} tokens asked again, {setting.smollm2.name}",
        ("reads", "keys and values", "first token, s", "of cold", "tokens from memory", "from disk", "ids"),
        rows,
        remarks,
    )


def rows_of(rate: str, first: list[dict[str, Any]], again: list[dict[str, Any]]) -> list[list[str]]:
    """Cold, from memory, from disk: medians over the prompts. `first` alternates between cold and repeated turns."""
    cold, memory = first[0::2], first[1::2]
    wanted = [turn["ids"] for turn in cold]
    cold_s = middle([turn["first_token_s"] for turn in cold])
    rows = []
    for name, turns in (("computed", cold), ("from memory", memory), ("from disk, after a restart", again)):
        seconds = middle([turn["first_token_s"] for turn in turns])
        from_disk = middle([turn["restored_tokens"] for turn in turns])
        from_memory = middle([turn["cached_tokens"] for turn in turns]) - from_disk
        is_same = [turn["ids"] for turn in turns] == wanted
        cells = [f"{seconds:.3f}", f"1/{cold_s / seconds:.1f}", f"{from_memory:.0f}", f"{from_disk:.0f}"]
        rows.append([rate, name, *cells, "equal" if is_same else "DIFFERENT"])
    return rows
