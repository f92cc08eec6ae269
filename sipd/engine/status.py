"""A snapshot of everything that the engine counts."""

from __future__ import annotations

from sipd.engine.executor import Executor
from sipd.engine.request import EngineStatus
from sipd.engine.reuse import Reuse
from sipd.engine.scheduler import Scheduler
from sipd.engine.totals import Totals


def snapshot(
    executor: Executor,
    scheduler: Scheduler,
    reuse: Reuse,
    totals: Totals,
    *,
    max_queued: int,
    n_idle_ticks: int,
    is_alive: bool,
    last_error: str,
    snapshot_fault: tuple[str, str] | None,
) -> EngineStatus:
    """The status of now; called under the engine's lock."""
    counters = executor.counters()
    pool, cache = reuse.pool, reuse.cache
    n_idle = 0 if cache is None else cache.n_idle
    return EngineStatus(
        n_active=len(scheduler.active),
        n_queued=len(scheduler.waiting),
        max_queued=max_queued,
        n_passes=totals.n_passes,
        total_rows=totals.n_rows,
        plan_bytes=executor.streamed_plan_bytes,
        pinned_bytes=executor.pinned_bytes,
        streamed_bytes_total=totals.streamed_bytes,
        device_bytes_total=counters.device_bytes + totals.embedding_device_bytes,
        head_bytes_total=totals.head_bytes,
        embedding_bytes_total=totals.embedding_bytes,
        read_bytes_per_s=counters.plan_bytes / counters.busy_s if counters.busy_s else 0.0,
        storage_wait_s_total=totals.storage_wait_s,
        compute_s_total=totals.compute_s,
        storage_idle_s_total=totals.storage_idle_s,
        reader_busy_s_total=counters.busy_s,
        kv_bytes_in_use=(pool.n_filled - n_idle) * pool.page_bytes,
        kv_bytes_granted=pool.n_pages * pool.page_bytes,
        kv_bytes_cached=n_idle * pool.page_bytes,
        max_rows=executor.max_rows,
        row_cap=scheduler.row_cap,
        cached_tokens_total=reuse.cached_tokens,
        restored_tokens_total=reuse.restored_tokens,
        n_sessions=0 if reuse.sessions is None else len(reuse.sessions),
        drafted_tokens_total=totals.drafted_tokens,
        accepted_tokens_total=totals.accepted_tokens,
        probe_rates=executor.probe.rates,
        n_readers=executor.probe.n_readers,
        read_size=executor.probe.read_size,
        progress_count=executor.control.steps + n_idle_ticks,
        is_alive=is_alive,
        last_error=last_error,
        snapshot_fault=snapshot_fault,
    )
