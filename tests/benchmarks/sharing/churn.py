"""Thousands of short requests, some cancelled at random: memory, threads and descriptors early and at the end."""

from __future__ import annotations

import random
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

from sipd.bench_load import prompt_ids
from sipd.engine.request import FinishReason, Request
from sipd.process_memory import read_anonymous_bytes
from tests.benchmarks.sharing.asking import Watch, send
from tests.benchmarks.sharing.bench import Bench
from tests.benchmarks.sharing.case import MIB, Setting
from tests.benchmarks.sharing.jobs import Job, run_job
from tests.benchmarks.sharing.table import Table, place_cell

_SEED = 4
_REQUESTS, _CANCELLED, _EARLY = 2000, 200, 200
_AT_ONCE = 12  # with eight places: some are cancelled in the queue
_HEAD_TOKENS, _TAIL_TOKENS, _MAX_TOKENS = 32, (1, 24), (1, 8)
_SESSIONS = 12
_BUDGET = 384 * MIB
_SIZES = ("anonymous_bytes", "kv_bytes")


def measure(bench: Bench, given: dict[str, Any]) -> dict[str, Any]:
    """Three readings (before, after the early requests, at the end), and how the requests ended."""
    generator = random.Random(_SEED)
    n_requests, n_early = int(given["requests"]), int(given["early"])
    victims = set(generator.sample(range(n_requests), int(given["cancelled"])))
    live: deque[tuple[Request, Watch]] = deque()
    readings = [reading(bench)]
    ends: dict[str, int] = {}
    n_cached = n_accepted = 0

    def reap(most: int) -> None:
        nonlocal n_cached, n_accepted
        while len(live) > most:
            _, watch = live.popleft()
            outcome = watch.wait(may_fail=True)
            if outcome.reason is FinishReason.ERROR and outcome.error is not None:
                raise outcome.error
            ends[outcome.reason.value] = ends.get(outcome.reason.value, 0) + 1
            n_cached += outcome.usage.cached_tokens > 0
            n_accepted += outcome.usage.accepted_tokens

    for number in range(n_requests):
        if number == n_early:
            reap(0)
            readings.append(reading(bench))
        live.append(_send(bench, generator, number))
        if number in victims:
            for _ in range(generator.randrange(4)):  # queued, in its prompt, or decoding
                live[0][1].first_came.wait(0.01)
            bench.engine.cancel(live[-1][0])
        reap(_AT_ONCE - 1)
    reap(0)
    readings.append(reading(bench))
    return {"readings": readings, "ends": ends, "with_cached": n_cached, "accepted": n_accepted}


def _send(bench: Bench, generator: random.Random, number: int) -> tuple[Request, Watch]:
    vocab_size = bench.engine.vocab_size
    head = prompt_ids(generator.randrange(8), _HEAD_TOKENS, vocab_size)
    tail = prompt_ids(1000 + number, generator.randint(*_TAIL_TOKENS), vocab_size)
    session = f"client/{generator.randrange(_SESSIONS)}" if number % 10 == 0 else ""
    most = generator.randint(*_MAX_TOKENS)
    name = f"client-{generator.randrange(6)}"
    return send(bench.engine, head + tail, most, name, uses_prefix_cache=True, speculates=True, session=session)


def reading(bench: Bench) -> dict[str, int]:
    """This process: anonymous bytes, threads, open descriptors; and the KV pages that hold something."""
    own, status = Path("/proc/self"), bench.engine.status()
    return {
        "anonymous_bytes": read_anonymous_bytes(),
        "threads": sum(1 for _ in (own / "task").iterdir()),
        "descriptors": sum(1 for _ in (own / "fd").iterdir()),
        "kv_bytes": status.kv_bytes_in_use + status.kv_bytes_cached,
    }


def tabulate(setting: Setting) -> Table:
    """One process, everything switched on: prefix cache, sessions on disk, speculation."""
    scale = min(1.0, (setting.tokens or _REQUESTS) / _REQUESTS)
    given = {
        "requests": int(_REQUESTS * scale),
        "cancelled": int(_CANCELLED * scale),
        "early": int(_EARLY * scale),
    }
    with tempfile.TemporaryDirectory(dir=setting.work) as folder:
        settings = {"context": 256, "max_requests": 8, "snapshot_dir": folder}
        result = run_job(Job("requests", setting.smollm2, _BUDGET, settings, given))
    ends = ", ".join(f"{count} {reason}" for reason, count in sorted(result["ends"].items()))
    return Table(
        f"requests: {given['requests']} short ones, {given['cancelled']} of them cancelled, {setting.smollm2.name}",
        ("when", "anonymous MB", "KV pages with content, MB", "threads", "descriptors"),
        rows(result["readings"], given["early"]),
        (
            f"{place_cell(result)}.",
            f"Ends: {ends}; {result['with_cached']} began with cached tokens, {result['accepted']} drafts were right.",
        ),
    )


def rows(readings: list[dict[str, int]], n_early: int) -> list[list[str]]:
    """A row for each reading, and one for what came between the last two."""
    names = ("before the first", f"after request {n_early}", "at the end")
    found = [
        [name, *(f"{each[key] / 1e6:.2f}" for key in _SIZES), str(each["threads"]), str(each["descriptors"])]
        for name, each in zip(names, readings, strict=True)
    ]
    early, end = readings[1:]
    grown = [f"{(end[key] - early[key]) / 1e6:+.2f}" for key in _SIZES]
    grown += [f"{end[name] - early[name]:+d}" for name in ("threads", "descriptors")]
    return [*found, ["grown since", *grown]]
