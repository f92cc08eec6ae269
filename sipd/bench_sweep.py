"""`sipd bench --sweep`: decode rate and streamed bytes over the budget, as CSV and as one picture.

Invariant: each point is a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sipd.bench_load import stagger
from sipd.config import Config
from sipd.engine.kv_cache import pages_for
from sipd.engine.layout import Layout
from sipd.engine.planned_model import PlannedModel, open_planned_model
from sipd.errors import EX_SOFTWARE, ConfigError, SipdError
from sipd.memory import default_margin_bytes
from sipd.process_memory import read_anonymous_bytes
from sipd.size import format_size
from sipd.svg_chart import Chart, Series, svg

N_POINTS = 9
_MIB = 1024**2
# A benchmark's base lies some MiB above that of the process that plans the sweep
_BASE_SLACK_BYTES = 4 * _MIB
_LEAST_ROWS = 16  # of a pass under the least budget
_ENGINE_FLAGS = (
    *("context", "threads", "max_requests", "rows_per_pass", "direct_io"),
    *("isa", "tile_bytes", "ring_slots", "readers", "pin"),
)
COLUMNS = (
    *("budget_bytes", "peak_anonymous_bytes", "pinned_bytes", "streamed_bytes_per_token", "decode_tokens_per_s"),
    *("prefill_tokens_per_s", "storage_limit_tokens_per_s", "compute_limit_tokens_per_s", "storage_bytes_per_s"),
    *("storage_wait_s_per_pass", "compute_s_per_pass"),
)


@dataclass(frozen=True, slots=True)
class SweepLoad:
    """What every point runs."""

    prompt_tokens: int
    tokens: int
    clients: int


def run_sweep(
    config: Config, out: Path, *, prompt_tokens: int, tokens: int, clients: int, n_points: int = N_POINTS
) -> int:
    """Writes OUT.csv and OUT.svg and returns 0; blocks for some minutes. Raises ConfigError or what a point raised."""
    load = SweepLoad(prompt_tokens, tokens, clients)
    csv_path, svg_path = out.with_name(out.name + ".csv"), out.with_name(out.name + ".svg")
    if not out.parent.is_dir():
        raise ConfigError("sweep", f"{out.parent} is no directory, wanted one that the files can be written to")
    model = with_context_for(open_planned_model(config), load)
    reports: list[dict[str, Any]] = []
    for budget in sweep_budgets(model, load, n_points):
        if sys.stderr.isatty():
            sys.stderr.write(f"\rbudget {format_size(budget)}, point {len(reports) + 1} of {n_points}\x1b[K")
            sys.stderr.flush()
        reports.append(measure_point(model.config, budget, load))
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    rows = sweep_rows(reports)
    with csv_path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    svg_path.write_text(svg(sweep_chart(reports, rows)), encoding="utf-8")
    print(f"{csv_path}\n{svg_path}")
    return 0


def with_context_for(model: PlannedModel, load: SweepLoad) -> PlannedModel:
    """The model under a context that just holds the load, unless one was set: what is left then goes to the weights."""
    if model.config.context is not None:
        return model
    extra = stagger(_LEAST_ROWS, load.prompt_tokens, load.clients)
    context = min(load.prompt_tokens + load.tokens + extra, model.program.hyperparameters.context_length)
    return replace(model, config=replace(model.config, context=context))


def sweep_budgets(model: PlannedModel, load: SweepLoad, n_points: int) -> list[int]:
    """Budgets in whole MiB, ascending: from the least that holds the load to the least that keeps all weights."""
    base = read_anonymous_bytes() + _BASE_SLACK_BYTES
    low = model.nearest_budget(base, lambda _ledger: None)
    while (layout := _layout(model, low, base)).forward.n_pages < load.clients * pages_for(layout.context_tokens):
        low += _MIB
    high = low
    while model.config.pin and _layout(model, high, base).streamed_bytes:
        high += max(_MIB, high // 32 // _MIB * _MIB)
    steps = [low + (high - low) * i // max(1, n_points - 1) for i in range(n_points)]
    return sorted({-(-step // _MIB) * _MIB for step in steps})


def _layout(model: PlannedModel, budget: int, base: int) -> Layout:
    return model.layout(budget - base - default_margin_bytes(budget))


def measure_point(config: Config, budget: int, load: SweepLoad) -> dict[str, Any]:
    """One `sipd bench --json` in a process of its own; raises SipdError with its last line when it fails."""
    done = subprocess.run(point_command(config, budget, load), capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise SipdError(f"the point at {format_size(budget)} ended with {done.returncode or EX_SOFTWARE}: {last}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def point_command(config: Config, budget: int, load: SweepLoad) -> list[str]:
    """The command of one point: every setting spelled out, so that files and environment change nothing."""
    # -P: not a source tree that happens to be the working directory, whose kernels may not be built
    command = [sys.executable, "-P", "-m", "sipd", "bench", str(config.model), "--json", "--budget", str(budget)]
    for name in ("prompt_tokens", "tokens", "clients"):
        command += [f"--{name.replace('_', '-')}", str(getattr(load, name))]
    for name in _ENGINE_FLAGS:
        value = getattr(config, name)
        if value is not None:
            text = {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
            command += [f"--{name.replace('_', '-')}", text]
    return command


def sweep_rows(reports: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The CSV's rows. The storage limit takes the best rate of all points: a small budget probes with small buffers."""
    rates = [report["storage"]["bytes_per_s"] for report in reports if report["storage"]]
    rate = max(rates, default=None)
    rows: list[dict[str, Any]] = []
    for report in reports:
        decode, limits = report["decode"], report["limits"]
        n_bytes = decode["streamed_bytes_per_token"]
        rows.append(
            {
                "budget_bytes": report["budget_bytes"],
                "peak_anonymous_bytes": report["peak_anonymous_bytes"],
                "pinned_bytes": report["pinned_bytes"],
                "streamed_bytes_per_token": n_bytes,
                "decode_tokens_per_s": decode["tokens_per_s"],
                "prefill_tokens_per_s": report["prefill"]["tokens_per_s"],
                "storage_limit_tokens_per_s": round(rate / n_bytes, 4) if rate and n_bytes else None,
                "compute_limit_tokens_per_s": limits["compute_tokens_per_s"],
                "storage_bytes_per_s": rate,
                "storage_wait_s_per_pass": decode["storage_wait_s_per_pass"],
                "compute_s_per_pass": decode["compute_s_per_pass"],
            }
        )
    return rows


def sweep_chart(reports: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]) -> Chart:
    """The picture of the rows; a storage limit far above everything else is cut off where it leaves the chart."""
    compute = [row["compute_limit_tokens_per_s"] for row in rows if row["compute_limit_tokens_per_s"] is not None]
    top = 1.25 * max([*compute, *(row["decode_tokens_per_s"] for row in rows)])

    def line(key: str, scale: float = 1.0) -> list[tuple[float, float | None]]:
        return [(row["budget_bytes"] / _MIB, None if row[key] is None else row[key] * scale) for row in rows]

    storage = [(x, y if y is not None and y <= top else None) for x, y in line("storage_limit_tokens_per_s")]
    first = reports[0]
    rate = rows[0]["storage_bytes_per_s"]
    rate_text = f"storage {rate / 1e6:.0f} MB/s" if rate else "storage not probed"
    return Chart(
        title=f"{Path(first['model']).name}: decode over memory budget",
        subtitle=f"{rate_text}, kernels {first['isa']}, threads {first['threads']}, "
        f"{first['prompt_tokens']} prompt tokens, {first['clients']} request(s) at a time",
        x_label="budget, MiB",
        left_label="tokens per second",
        right_label="MB streamed per token",
        series=(
            Series("decode", "#1f77b4", line("decode_tokens_per_s")),
            Series(
                "streamed bytes per token (right)",
                "#888888",
                line("streamed_bytes_per_token", 1e-6),
                uses_right_axis=True,
            ),
            Series("storage limit", "#d62728", storage, is_dashed=True),
            Series("compute limit", "#2ca02c", line("compute_limit_tokens_per_s"), is_dashed=True),
        ),
    )
