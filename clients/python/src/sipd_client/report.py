"""Daemon and model as lines for people."""

from __future__ import annotations

from sipd_client.v1.generation_pb2 import Progress
from sipd_client.v1.model_pb2 import Model
from sipd_client.v1.status_pb2 import DaemonState, GetStatusResponse

_MIB = 1024 * 1024
_MB = 1_000_000


def progress_line(progress: Progress) -> str:
    """Returns what a waiting person wants to know."""
    if progress.queue_position:
        return f"queued, {progress.queue_position} ahead"
    return (
        f"prompt {progress.prompt_tokens_done}/{progress.prompt_tokens} tokens, "
        f"layer {progress.layer}/{progress.n_layers}"
    )


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
    direct = "direct" if storage.uses_direct_io else "buffered"
    lines += [
        f"storage  {storage.read_bytes_per_s / _MB:.1f} MB/s {direct}, {_mb(storage.pass_bytes)} a pass, "
        f"{_mb(storage.pinned_bytes)} pinned",
        f"totals   {totals.passes} passes, {totals.rows} rows, {_mb(totals.streamed_bytes)} streamed, "
        f"{_mb(totals.device_bytes)} from the device",
        f"time     {totals.compute_s:.1f} s computing, {totals.storage_wait_s:.1f} s waiting for storage; "
        f"storage idle for {totals.storage_idle_s:.1f} s of the passes",
    ]
    if status.last_error:
        lines.append(f"fault    {status.last_error}")
    return lines


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
        f"passes   {limits.max_active} requests, {limits.max_rows_per_pass} rows; {limits.max_queued} may wait",
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
