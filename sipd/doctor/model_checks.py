"""Checks of the model: is it sound, does it fit, how fast is its storage, and what speed follows, with the arithmetic.

Invariant: nothing that `sipd serve` would refuse is called ok here.
"""

from __future__ import annotations

from collections.abc import Iterator

from sipd.bench_storage import StorageRate, measure_storage
from sipd.config import Config
from sipd.doctor.compute_rate import ComputeRate, measure_compute
from sipd.doctor.finding import Finding, fail, ok, warn
from sipd.engine.layout import Layout
from sipd.engine.planned_model import PlannedModel, needed_bytes, open_planned_model
from sipd.errors import BudgetError, SipdError
from sipd.kernels import binding
from sipd.memory import Ledger, open_ledger
from sipd.plan_report import STARTED_SERVER_BYTES, bytes_per_pass, load_what_the_daemon_loads, refusal
from sipd.size import format_size

_PROBE_S = 0.1  # 18 probes and repetitions: below two seconds
_MB = 1e6
_SLOW_BYTES_PER_S = 15 * _MB  # below a class 10 card: a worn one, or USB 1


def check_model(config: Config, probe_s: float = _PROBE_S) -> Iterator[Finding]:
    """Yields the findings about `config.model`; reads some seconds of it."""
    try:
        model = open_planned_model(config)
        isas = ", ".join(binding.isa_names(model.library)) if model.library.sipd_isa_count() else "numpy"
    except SipdError as error:
        yield fail("model", str(error), "download the file again, or see README.md for what sipd runs")
        return
    if isas == "numpy":
        yield warn("kernels", "the kernel library is missing: NumPy computes, many times slower", "install a wheel")
    else:
        yield ok("kernels", f"{isas} (the first is used)")
    try:
        reserve = load_what_the_daemon_loads(config, model)
        ledger = open_ledger(config.budget)
        ledger.base_bytes += STARTED_SERVER_BYTES
    except SipdError as error:
        yield fail("model", str(error), "download the file again, or see README.md for what sipd runs")
        return
    storage = _measure(model, ledger, probe_s)
    yield from _check_storage(model, storage)
    try:
        reserve(ledger)
        layout = model.layout(ledger.remaining())
    except BudgetError:
        layout = model.layout(0)
    left = ledger.limit_bytes - ledger.base_bytes - ledger.margin_bytes - ledger.granted()
    if needed_bytes(layout) > left:
        fault = refusal(model, ledger, layout, reserve)
        yield fail("fit", fault.finding, fault.advice)
        return
    yield _fit(model, ledger, layout)
    compute = measure_compute(model.library, model.program, config.isa)
    yield _speed(model, layout, storage, compute)


def _measure(model: PlannedModel, ledger: Ledger, probe_s: float) -> StorageRate | SipdError:
    try:
        return measure_storage(model.library, model.checkpoint, ledger, model.config.direct_io, probe_s=probe_s)
    except (SipdError, AttributeError) as error:  # AttributeError: the twin has no native readers
        return error if isinstance(error, SipdError) else SipdError("the kernel library is missing")


def _check_storage(model: PlannedModel, storage: StorageRate | SipdError) -> Iterator[Finding]:
    if isinstance(storage, BudgetError):
        yield warn("storage", "the budget has no room for a measurement", "raise the limit")
    elif isinstance(storage, SipdError):
        yield fail("storage", str(storage), "check the cable, the power supply and dmesg; then the file system")
    elif not storage.is_direct:
        text = f"{model.checkpoint.path.name} is read through the page cache: no direct I/O on this file system"
        yield warn("storage", text, "move the model to ext4, xfs, btrfs, f2fs or vfat on a disk of this machine")
    else:
        rate, best = storage.bytes_per_s, storage.best
        text = f"{rate / _MB:.0f} MB/s ({best.queue_depth} reads of {format_size(best.read_bytes)} in flight)"
        if rate < _SLOW_BYTES_PER_S:
            yield warn("storage", text, "use an A2 card, a USB 3 disk or NVMe: every pass waits for this")
        else:
            yield ok("storage", text)


def _fit(model: PlannedModel, ledger: Ledger, layout: Layout) -> Finding:
    per_pass = bytes_per_pass(model, layout)
    return ok(
        "fit",
        f"{model.checkpoint.path.name} ({format_size(sum(model.checkpoint.file_sizes))}) in "
        f"{format_size(ledger.limit_bytes)} ({ledger.source}): context {layout.context_tokens} tokens, "
        f"{format_size(per_pass['pinned'])} of {format_size(per_pass['total'])} of weights stay in memory",
    )


def _speed(
    model: PlannedModel, layout: Layout, storage: StorageRate | SipdError, compute: ComputeRate | None
) -> Finding:
    """The arithmetic of one token: storage and computing overlap, so the longer of the two counts."""
    per_pass = bytes_per_pass(model, layout)
    parts: list[str] = []
    seconds = 0.0
    if isinstance(storage, StorageRate) and storage.bytes_per_s:
        io_s = per_pass["streamed"] / storage.bytes_per_s
        seconds = io_s
        parts.append(
            f"{per_pass['streamed'] / _MB:.1f} MB / {storage.bytes_per_s / _MB:.0f} MB/s = {io_s:.3f} s storage"
        )
    if compute is not None:
        rate = compute.bytes_per_s * model.n_threads
        compute_s = per_pass["total"] / rate
        seconds = max(seconds, compute_s)
        parts.append(
            f"{per_pass['total'] / _MB:.1f} MB / ({model.n_threads} x {compute.bytes_per_s / _MB:.0f} MB/s) = "
            f"{compute_s:.3f} s computing ({compute.isa}, {compute.type_name})"
        )
    if not seconds:
        return warn("speed", "nothing could be measured", "sipd bench measures the whole")
    return ok("speed", f"at most {_rate(1 / seconds)} tokens/s: a pass takes the longer of {' and '.join(parts)}")


def _rate(value: float) -> str:
    """Two digits that matter, without an exponent."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
