"""The figures of `sipd bench`: medians over the repetitions, as JSON values and for people.

Invariant: prefill and decode stand apart, and so do plan bytes, the readers' bytes and the kernel's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from sipd.bench_load import Counts, Phase
from sipd.bench_storage import StorageRate
from sipd.engine.layout import Layout
from sipd.engine.planned_model import PlannedModel
from sipd.memory import Ledger
from sipd.process_memory import ProcessMemory
from sipd.size import format_size
from sipd.weights.probe import ProbeResult


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """Everything measured in one run. The cold first token counts from before the engine was built."""

    model: PlannedModel
    layout: Layout
    storage: StorageRate | None
    isa: str
    uses_direct_io: bool
    start_probe: ProbeResult
    prompt_tokens: int
    tokens: int
    n_clients: int
    load_s: float
    cold_first_token_s: float
    prefills: tuple[Phase, ...]
    decodes: tuple[Phase, ...]
    ledger: Ledger
    peak_anonymous_bytes: int
    memory: ProcessMemory


def bench_report(result: BenchResult) -> dict[str, Any]:
    """Returns the report as JSON values; docs/bench.md says what each key means."""
    decode = _phase_report(result.decodes)
    prefill = _phase_report(result.prefills)
    return {
        "model": str(result.model.checkpoint.path),
        "file_bytes": sum(result.model.checkpoint.file_sizes),
        "prompt_tokens": result.prompt_tokens,
        "tokens": result.tokens,
        "clients": result.n_clients,
        "repetitions": len(result.decodes),
        "isa": result.isa,
        "threads": result.model.n_threads,
        "uses_direct_io": result.uses_direct_io,
        "budget_bytes": result.ledger.limit_bytes,
        "budget_source": result.ledger.source,
        "terms": [{"name": term.name, "bytes": term.n_bytes} for term in result.ledger.terms()],
        "plan_bytes_per_pass": result.layout.streamed_bytes,
        "pinned_bytes": result.layout.pinned_weight_bytes,
        "rows_per_pass": result.layout.forward.max_rows,
        "context_tokens": result.layout.context_tokens,
        "peak_anonymous_bytes": result.peak_anonymous_bytes,
        "rss_peak_bytes": result.memory.rss_peak,
        "storage": _storage_report(result.storage),
        "readers": result.start_probe.n_readers,
        "read_size": result.start_probe.read_size,
        "start_probe": [
            {"queue_depth": depth, "read_bytes": read_bytes, "bytes_per_s": round(rate)}
            for depth, read_bytes, rate in result.start_probe.rates
        ],
        "load_s": round(result.load_s, 4),
        "cold_first_token_s": round(result.cold_first_token_s, 4),
        "first_token_s": _median(result.prefills, lambda phase: phase.seconds),
        "prefill": prefill,
        "decode": decode,
        "limits": _limits(result, decode),
    }


def _storage_report(rate: StorageRate | None) -> dict[str, Any] | None:
    if rate is None:
        return None
    return {
        "bytes_per_s": round(rate.bytes_per_s),
        "is_direct": rate.is_direct,
        "queue_depth": rate.best.queue_depth,
        "read_bytes": rate.best.read_bytes,
        "skipped_probes": rate.n_skipped,
        "probes": [asdict(probe) | {"bytes_per_s": round(probe.bytes_per_s)} for probe in rate.probes],
    }


def _phase_report(phases: Sequence[Phase]) -> dict[str, Any]:
    """Medians of one kind of phase; per pass where the name says so."""
    wait_s = _median(phases, lambda phase: _per_pass(phase.counts, phase.counts.storage_wait_s))
    idle_s = _median(phases, lambda phase: _per_pass(phase.counts, _storage_idle_s(phase.counts)))
    return {
        "tokens_per_s": _median(phases, lambda phase: phase.tokens_per_s),
        "passes": round(median(phase.counts.n_passes for phase in phases)),
        "rows_per_pass": _median(phases, lambda phase: _per_pass(phase.counts, phase.counts.n_rows)),
        "streamed_bytes_per_pass": round(
            median(_per_pass(phase.counts, phase.counts.streamed_bytes) for phase in phases)
        ),
        "streamed_bytes_per_token": round(
            median(phase.counts.streamed_bytes / max(1, phase.n_tokens) for phase in phases)
        ),
        "embedding_bytes_per_pass": round(
            median(_per_pass(phase.counts, phase.counts.embedding_bytes) for phase in phases)
        ),
        "device_to_plan_ratio": _median_ratio(phases, lambda counts: counts.device_bytes),
        "kernel_to_plan_ratio": _median_ratio(phases, lambda counts: counts.kernel_read_bytes),
        "storage_wait_s_per_pass": wait_s,
        "compute_s_per_pass": _median(phases, lambda phase: _per_pass(phase.counts, phase.counts.compute_s)),
        "storage_idle_s_per_pass": idle_s,
        "binds": "storage" if wait_s > idle_s else "compute",
    }


def _limits(result: BenchResult, decode: dict[str, Any]) -> dict[str, Any]:
    """The decode rates that storage alone and compute alone would allow, and how much of the lower one was reached."""
    per_pass = result.n_clients  # each pass gives every client one token
    n_bytes, compute_s = decode["streamed_bytes_per_pass"], decode["compute_s_per_pass"]
    storage_limit = None
    if result.storage is not None and n_bytes > 0:
        storage_limit = result.storage.bytes_per_s / n_bytes * per_pass
    compute_limit = per_pass / compute_s if compute_s > 0 else None
    known = [limit for limit in (storage_limit, compute_limit) if limit is not None]
    return {
        "storage_tokens_per_s": _rounded(storage_limit),
        "compute_tokens_per_s": _rounded(compute_limit),
        "reached_ratio": _rounded(decode["tokens_per_s"] / min(known)) if known else None,
    }


def _storage_idle_s(counts: Counts) -> float:
    """Seconds of a phase's passes without a read in flight; 0 when nothing is streamed."""
    if counts.streamed_bytes <= counts.embedding_bytes:
        return counts.storage_wait_s + counts.compute_s
    return max(0.0, counts.storage_wait_s + counts.compute_s - counts.reader_busy_s)


def _per_pass(counts: Counts, total: float) -> float:
    return total / counts.n_passes if counts.n_passes else 0.0


def _median(phases: Sequence[Phase], figure: Callable[[Phase], float]) -> float:
    return round(median(figure(phase) for phase in phases), 6)


def _median_ratio(phases: Sequence[Phase], figure: Callable[[Counts], int | None]) -> float | None:
    """Median of a byte count over plan bytes; None when nothing was streamed, or not counted."""
    ratios = [
        n_bytes / phase.settled.streamed_bytes
        for phase in phases
        if (n_bytes := figure(phase.settled)) is not None and phase.settled.streamed_bytes > 0
    ]
    return round(median(ratios), 4) if ratios else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def bench_text(report: dict[str, Any]) -> str:
    """Returns the report for people."""
    storage, limits = report["storage"], report["limits"]
    lines = [
        f"{report['model']}: {format_size(report['file_bytes'])}, kernels {report['isa']}, "
        f"threads {report['threads']}, {'O_DIRECT' if report['uses_direct_io'] else 'page cache'}",
        f"budget     {format_size(report['budget_bytes'])} ({report['budget_source']}), peak anonymous "
        f"{format_size(report['peak_anonymous_bytes'])}, peak RSS {format_size(report['rss_peak_bytes'])}, "
        f"pinned {format_size(report['pinned_bytes'])}, streamed {format_size(report['plan_bytes_per_pass'])} a pass",
    ]
    if storage is None:
        lines.append("storage    not probed: the budget has no room for a probe's buffers")
    else:
        lines.append(
            f"storage    {storage['bytes_per_s'] / 1e6:.0f} MB/s "
            f"{'O_DIRECT' if storage['is_direct'] else 'through the page cache'}, "
            f"{storage['queue_depth']} reads of {format_size(storage['read_bytes'])} in flight"
        )
    lines.append(_readers_line(report))
    lines.append(
        f"start      {report['load_s']:.3f} s to load, first token {report['cold_first_token_s']:.3f} s after the "
        f"start, {report['first_token_s']:.3f} s when running ({report['prompt_tokens']} prompt tokens)"
    )
    lines += [_phase_line("prefill", report["prefill"]), _phase_line("decode", report["decode"])]
    parts = [
        f"{name} {limits[key]:.2f}"
        for name, key in (("storage", "storage_tokens_per_s"), ("compute", "compute_tokens_per_s"))
        if limits[key] is not None
    ]
    if limits["reached_ratio"] is not None:
        lines.append(f"limits     {', '.join(parts)} tokens/s; reached {limits['reached_ratio']:.2f} of the lower one")
    lines.append(f"medians of {report['repetitions']}, {report['clients']} request(s) at a time")
    return "\n".join(lines)


def _readers_line(report: dict[str, Any]) -> str:
    tried = ", ".join(
        f"{probe['queue_depth']} in flight {probe['bytes_per_s'] / 1e6:.0f} MB/s" for probe in report["start_probe"]
    )
    return (
        f"readers    {report['readers']}, reads of up to {format_size(report['read_size'])}; "
        f"{f'probed at start: {tried}' if tried else 'nothing to probe at start'}"
    )


def _phase_line(name: str, phase: dict[str, Any]) -> str:
    ratio = phase["kernel_to_plan_ratio"]
    device = "" if ratio is None else f" (device/plan {ratio:.3f})"
    compute_ms, wait_ms, idle_ms = (
        1e3 * phase[f"{key}_s_per_pass"] for key in ("compute", "storage_wait", "storage_idle")
    )
    return (
        f"{name:<11}{phase['tokens_per_s']:.2f} tokens/s, {phase['passes']} passes of "
        f"{format_size(phase['streamed_bytes_per_pass'])}{device}; a pass computes {compute_ms:.2f} ms, "
        f"waits {wait_ms:.2f} ms for storage, leaves it idle {idle_ms:.2f} ms: {phase['binds']} binds"
    )
