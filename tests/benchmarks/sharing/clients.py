"""Many clients at once on a streaming budget: tokens a second together, and streamed bytes for each token."""

from __future__ import annotations

from typing import Any

from sipd.bench_load import prompt_ids, stagger
from tests.benchmarks.sharing.asking import Watch, send, warm_up
from tests.benchmarks.sharing.bench import Bench
from tests.benchmarks.sharing.case import MB_S_200, MIB, Setting
from tests.benchmarks.sharing.jobs import Job, run_job
from tests.benchmarks.sharing.storage import storage_line
from tests.benchmarks.sharing.table import Table, place_cell, rate_cell, verdict

_COUNTS = (1, 2, 4, 8, 16)
_PROMPT_TOKENS = 16
_TOKENS = 24
_TARGET_AT, _TARGET = 8, 6.0
# 32 KV pages: what sixteen requests of at most 64 positions need
_SETTINGS = {"context": 1024, "max_requests": 16}
_BUDGET = 96 * MIB


def measure(bench: Bench, given: dict[str, Any]) -> dict[str, Any]:
    """The rate from the last one's first token to the first one's end: all of them decode."""
    n_clients, n_tokens = int(given["clients"]), int(given["tokens"])
    engine = bench.engine
    warm_up(engine, prompt_ids(0, _PROMPT_TOKENS, engine.vocab_size), 2)
    wanted = n_tokens + stagger(engine.rows_per_pass, _PROMPT_TOKENS, n_clients)
    watches = [
        send(engine, prompt_ids(index, _PROMPT_TOKENS, engine.vocab_size), wanted, f"client-{index}")[1]
        for index in range(1, n_clients + 1)
    ]
    for watch in watches:
        watch.wait()
    return together(watches)


def together(watches: list[Watch]) -> dict[str, Any]:
    """Tokens, seconds and streamed bytes while all of them decoded."""
    begin = max(watches, key=lambda watch: watch.times[0])
    end = min(watches, key=lambda watch: watch.times[-1])
    assert begin.at_first is not None
    assert end.at_end is not None
    seconds = end.times[-1] - begin.times[0]
    n_tokens = end.at_end.total_rows - begin.at_first.total_rows  # each row of these passes gave a token
    n_bytes = end.at_end.streamed_bytes_total - begin.at_first.streamed_bytes_total
    compute_s = end.at_end.compute_s_total - begin.at_first.compute_s_total
    n_passes = end.at_end.n_passes - begin.at_first.n_passes
    return {
        "n_tokens": n_tokens,
        "seconds": seconds,
        "tokens_per_s": n_tokens / seconds,
        "bytes_per_token": n_bytes / n_tokens,
        "compute_s_per_pass": compute_s / n_passes,
        "s_per_pass": seconds / n_passes,
    }


def tabulate(setting: Setting) -> Table:
    """One process for each number of clients."""
    rate = MB_S_200
    found = {
        count: run_job(
            Job(
                "clients",
                setting.smollm2,
                _BUDGET,
                _SETTINGS,
                {"clients": count, "tokens": setting.tokens or _TOKENS},
                rate,
                is_cold=True,
            )
        )
        for count in _COUNTS
    }
    return Table(
        f"clients: {setting.smollm2.name}, reads at most {rate_cell(rate)}",
        (
            "clients",
            "tokens/s together",
            "of one client",
            "streamed MB per token",
            "of one client's",
            "s a pass",
            "compute s",
        ),
        rows(found),
        (
            f"{place_cell(found[_COUNTS[0]])}.",
            f"{_TARGET_AT} clients: {verdict(ratio(found, _TARGET_AT), _TARGET)}.",
            storage_line(setting.smollm2, rate),
        ),
    )


def ratio(found: dict[int, dict[str, Any]], count: int) -> float:
    """Tokens a second of `count` clients over those of one."""
    return float(found[count]["tokens_per_s"] / found[1]["tokens_per_s"])


def rows(found: dict[int, dict[str, Any]]) -> list[list[str]]:
    """A row for each number of clients."""
    alone = found[1]["bytes_per_token"]
    return [
        [
            str(count),
            f"{result['tokens_per_s']:.2f}",
            f"{ratio(found, count):.2f}",
            f"{result['bytes_per_token'] / 1e6:.2f}",
            f"1/{alone / result['bytes_per_token']:.2f}" if result["bytes_per_token"] else "-",
            f"{result['s_per_pass']:.3f}",
            f"{result['compute_s_per_pass']:.3f}",
        ]
        for count, result in found.items()
    ]
