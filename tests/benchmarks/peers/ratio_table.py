"""The ratio table: medians of the pairs, the ratio against its target, and what explains it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.benchmarks.peers.cases import Case
from tests.benchmarks.peers.measurement import DiskRates, Run

_MIB = 1024**2
HEADER = (
    "| case | metric | sipd | llama.cpp | ratio | target | device MB/token (sipd, llama.cpp) | "
    "storage MB/s (best, bytes loaded) | reached / limit (of the best, of bytes loaded) | "
    "sipd anonymous / limit MiB | pairs |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True, slots=True)
class Pair:
    """One A B pair and the disk's rates beside it."""

    sipd: Run
    peer: Run
    disk: DiskRates = field(default_factory=DiskRates)


def rows(case: Case, pairs: Sequence[Pair]) -> list[str]:
    """The table's lines of one case."""
    lines = [_row(case, pairs, metric, target) for metric, target in case.targets.items()]
    for name, runs in (("sipd", [pair.sipd for pair in pairs]), ("llama.cpp", [pair.peer for pair in pairs])):
        failures = sorted({run.failure for run in runs if run.failure})
        lines += [f"| {case.name} | {name} failed: {failure} |||||||||" for failure in failures]
    return lines


def _row(case: Case, pairs: Sequence[Pair], metric: str, target: float) -> str:
    ours = _median([pair.sipd for pair in pairs], lambda run: run.metric(metric))
    theirs = _median([pair.peer for pair in pairs], lambda run: run.metric(metric))
    ratio = None
    if ours and theirs:
        ratio = theirs / ours if metric == "first_token" else ours / theirs
    cells = [case.name, metric, _show(ours, ".2f"), _show(theirs, ".2f")]
    mark = "" if ratio is None or ratio >= target else " **below**"
    cells += [_show(ratio, ".2f") + mark, f"{target:g}"]
    cells += [_device_cell(pairs) if case.is_limited else "", _storage_cell(pairs), _reached_cell(case, pairs)]
    cells += [_memory_cell(pairs), str(len(pairs))]
    return f"| {' | '.join(cells)} |"


def reached_ratio(pair: Pair, storage_bytes_per_s: float) -> float | None:
    """The decode rate over the lower of the storage limit and the compute limit."""
    report = pair.sipd.report
    if pair.sipd.failure or not report.get("compute_s_per_token"):
        return None
    limits = [1 / report["compute_s_per_token"]]
    if storage_bytes_per_s and report["streamed_bytes_per_token"]:
        limits.append(storage_bytes_per_s / report["streamed_bytes_per_token"])
    return float(report["decode_tokens_per_s"] / min(limits))


def _reached_cell(case: Case, pairs: Sequence[Pair]) -> str:
    best = [ratio for pair in pairs if (ratio := reached_ratio(pair, pair.disk.best)) is not None]
    loaded = [ratio for pair in pairs if (ratio := reached_ratio(pair, pair.disk.loaded)) is not None]
    return f"{median(best):.2f}, {median(loaded):.2f}" if best and case.is_limited else ""


def _device_cell(pairs: Sequence[Pair]) -> str:
    ours, theirs = (
        _median(runs, lambda run: run.report.get("device_bytes_per_token"))
        for runs in ([pair.sipd for pair in pairs], [pair.peer for pair in pairs])
    )
    return f"{_show(ours, '.1f', 1e-6)}, {_show(theirs, '.1f', 1e-6)}"


def _storage_cell(pairs: Sequence[Pair]) -> str:
    rates = [pair.disk for pair in pairs if pair.disk.best]
    if not rates:
        return ""
    return f"{median(rate.best for rate in rates) / 1e6:.0f}, {median(rate.loaded for rate in rates) / 1e6:.0f}"


def _memory_cell(pairs: Sequence[Pair]) -> str:
    peak = _highest(pairs, "anonymous_bytes")
    budget = _highest(pairs, "budget_bytes")
    return "" if peak is None or budget is None else f"{peak / _MIB:.0f} / {budget / _MIB:.0f}"


def _highest(pairs: Sequence[Pair], key: str) -> float | None:
    found = [float(pair.sipd.report[key]) for pair in pairs if key in pair.sipd.report]
    return max(found, default=None)


def _median(runs: Sequence[Run], figure: Callable[[Run], float | None]) -> float | None:
    found = [value for run in runs if (value := figure(run)) is not None]
    return median(found) if found else None


def _show(value: float | None, form: str, scale: float = 1.0) -> str:
    return "-" if value is None else format(value * scale, form)
