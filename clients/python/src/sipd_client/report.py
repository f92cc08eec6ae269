"""Daemon and model as lines for people."""

from __future__ import annotations

from sipd_client.v1.generation_pb2 import Finished, FinishReason, Progress
from sipd_client.v1.model_pb2 import Model
from sipd_client.v1.status_pb2 import DaemonState, GetStatusResponse

_MIB = 1024 * 1024
_MB = 1_000_000


def progress_line(progress: Progress) -> str:
    """Returns what a waiting person wants to know."""
    if progress.queue_position:
        return f"queued, place {progress.queue_position}"
    return (
        f"prompt {progress.prompt_tokens_done}/{progress.prompt_tokens} tokens, "
        f"layer {progress.layer}/{progress.n_layers}"
    )


def finished_lines(finished: Finished) -> list[str]:
    """Returns what a generation cost: tokens, passes, bytes and seconds."""
    usage, timings = finished.usage, finished.timings
    reason = FinishReason.Name(finished.reason).removeprefix("FINISH_REASON_").lower()
    return [
        f"tokens   {usage.prompt_tokens} prompt, {usage.completion_tokens} completion; ended by {reason}",
        f"reused   {usage.cached_tokens} of the prompt, {usage.restored_tokens} of them from disk",
        f"drafts   {usage.accepted_tokens} of {usage.drafted_tokens} were right",
        f"passes   {finished.passes}, {finished.prefill_passes} of them with prompt tokens; "
        f"{_mb(finished.streamed_bytes)} streamed",
        f"time     {timings.queue_s:.2f} s queued, {timings.first_token_s:.2f} s to the first token, "
        f"{timings.total_s:.2f} s in all, {timings.storage_wait_s:.2f} s of it waiting for storage",
    ]


def status_lines(status: GetStatusResponse) -> list[str]:
    """Returns the daemon's state, memory (MiB) and storage (MB, as cards are sold)."""
    memory, queue, storage, totals = status.memory, status.queue, status.storage, status.totals
    state = DaemonState.Name(status.state).removeprefix("DAEMON_STATE_").lower()
    lines = [
        f"sipd {status.version}: {state}, model {status.model}, up {_duration(status.uptime_s)}",
        f"queue    {queue.active} active, {queue.queued} of {queue.max_queued} queued",
        f"memory   {_mib(memory.rss_anon_bytes)} of {_mib(memory.budget_bytes)} anonymous, "
        f"{_mib(memory.rss_file_bytes)} file, {_mib(memory.rss_peak_bytes)} peak",
        *(f"  {term.name:<20} {_mib(term.bytes):>12}" for term in memory.ledger),
    ]
    if memory.HasField("cgroup"):
        cgroup = memory.cgroup
        limit = f"of {_mib(cgroup.limit_bytes)}" if cgroup.HasField("limit_bytes") else "without limit"
        lines.append(f"cgroup   {_mib(cgroup.current_bytes)} {limit}, {_mib(cgroup.file_bytes)} page cache")
        if cgroup.HasField("oom_kill_events"):
            lines.append(
                f"  limit met {cgroup.max_events} times, throttled {cgroup.high_events}, "
                f"out of memory {cgroup.oom_events}, killed {cgroup.oom_kill_events}"
            )
    for name, has_pressure, pressure in (
        ("memory", memory.HasField("memory_pressure"), memory.memory_pressure),
        ("storage", memory.HasField("io_pressure"), memory.io_pressure),
    ):
        if has_pressure:
            lines.append(
                f"stalled  by {name} in the last 10 s: "
                f"some task {pressure.some_avg10:.1f} %, all tasks {pressure.full_avg10:.1f} %"
            )
    direct = "direct" if storage.uses_direct_io else "buffered"
    lines += [
        f"storage  {storage.read_bytes_per_s / _MB:.1f} MB/s {direct}, {_mb(storage.pass_bytes)} a pass, "
        f"{_mb(storage.pinned_bytes)} pinned",
        f"totals   {totals.passes} passes, {totals.rows} rows, {_mb(totals.streamed_bytes)} streamed, "
        f"{_mb(totals.device_bytes)} from the device",
        f"time     {totals.compute_s:.1f} s computing, {totals.storage_wait_s:.1f} s waiting for storage; "
        f"storage idle for {totals.storage_idle_s:.1f} s of the passes",
        *(_sharing_lines(status) if status.HasField("scheduling") else ()),
    ]
    if status.last_error:
        lines.append(f"fault    {status.last_error}")
    return lines


def _sharing_lines(status: GetStatusResponse) -> list[str]:
    """Returns how passes are filled, and what is reused and guessed to need fewer of them."""
    scheduling, cache, speculation = status.scheduling, status.prefix_cache, status.speculation
    source = "a draft model" if speculation.has_draft_model else "the text so far"
    return [
        f"sharing  {scheduling.max_rows_per_pass} rows a pass, {scheduling.rows_while_decoding} while decoding; "
        f"{scheduling.max_active} requests, {scheduling.max_requests_per_client} of one client; "
        f"{scheduling.clients} clients now",
        f"reuse    {_on(cache.is_on)}: {cache.cached_tokens} tokens, {cache.restored_tokens} of them from disk; "
        f"{_mib(cache.cached_bytes)} kept, {cache.sessions} of {cache.max_sessions} sessions",
        f"drafts   {_on(speculation.is_on)}, from {source}: "
        f"{speculation.accepted_tokens} of {speculation.drafted_tokens} were right",
    ]


def _on(is_on: bool) -> str:
    return "on" if is_on else "off"


def model_lines(model: Model) -> list[str]:
    """Returns what a model is and what one request may ask of it."""
    limits, capabilities = model.limits, model.capabilities
    inputs = ["token ids"]
    if capabilities.accepts_text:
        inputs.append("text")
    if capabilities.has_chat_template:
        inputs.append("chat")
    return [
        f"{model.name}: {model.architecture}, {model.n_layers} layers, vocabulary of {model.vocab_size}",
        f"weights  {', '.join(f'{share.type} {_mb(share.bytes)}' for share in model.quants)}",
        *(f"file     {file.name}, {file.bytes} bytes{_hash(file.sha256)}" for file in model.files),
        f"context  {model.context_tokens} tokens (trained for {model.trained_context_tokens})",
        f"input    {', '.join(inputs)}; at most {limits.max_prompt_bytes} bytes",
        f"passes   {limits.max_active} requests, {limits.max_rows_per_pass} rows; {limits.max_queued} may wait, "
        f"{limits.max_requests_per_client} requests of one client",
        f"kernels  {capabilities.isa}, arithmetic contract {capabilities.arithmetic_contract}",
    ]


def _hash(sha256: str) -> str:
    return f", sha256 {sha256}" if sha256 else ""


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / _MIB:.1f} MiB"


def _mb(n_bytes: int) -> str:
    return f"{n_bytes / _MB:.1f} MB"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
