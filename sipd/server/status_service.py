"""StatusService: a snapshot of the daemon, answered in every state and without the engine's thread."""

from __future__ import annotations

import time

import sipd
from sipd.cgroup import MemoryCgroup, find_memory_cgroup
from sipd.engine.request import EngineStatus
from sipd.memory import Ledger
from sipd.process_memory import read_process_memory
from sipd.server.service_state import ServiceState
from sipd.v1 import status_pb2 as pb


class StatusService:
    """Serves GetStatus; owned by the event loop's thread."""

    def __init__(self, state: ServiceState) -> None:
        self._state = state
        self._cgroup = find_memory_cgroup()

    async def get_status(self, _message: pb.GetStatusRequest) -> pb.GetStatusResponse:
        """Returns the snapshot."""
        state = self._state
        response = pb.GetStatusResponse(
            version=sipd.__version__,
            state=pb.DaemonState.Name(state.state.value),
            uptime_s=time.monotonic() - state.started_at,
            memory=_memory(state.ledger, self._cgroup),
            last_error=state.last_error,
        )
        if state.served is not None:
            status = state.served.engine.status()
            response.model = state.served.name
            response.last_error = response.last_error or status.last_error
            _fill(response, status, uses_direct_io=state.served.engine.uses_direct_io)
        return response


def _memory(ledger: Ledger | None, cgroup: MemoryCgroup | None) -> pb.Memory:
    memory = read_process_memory()
    message = pb.Memory(rss_anon_bytes=memory.rss_anon, rss_file_bytes=memory.rss_file, rss_peak_bytes=memory.rss_peak)
    if ledger is not None:
        message.budget_bytes = ledger.limit_bytes
        for term in ledger.terms():
            message.ledger.add(name=term.name, bytes=term.n_bytes)
    if cgroup is not None:
        pages = cgroup.page_bytes()
        message.cgroup.version = cgroup.version
        message.cgroup.current_bytes = cgroup.current_bytes() or 0
        message.cgroup.anon_bytes, message.cgroup.file_bytes = pages.anonymous, pages.file
        limit = cgroup.limit_bytes()
        if limit is not None:
            message.cgroup.limit_bytes = limit
    return message


def _fill(response: pb.GetStatusResponse, status: EngineStatus, *, uses_direct_io: bool) -> None:
    """Copies the engine's figures."""
    response.memory.kv_used_bytes = status.kv_bytes_in_use
    response.memory.kv_granted_bytes = status.kv_bytes_granted
    response.queue.CopyFrom(pb.Queue(active=status.n_active, queued=status.n_queued, max_queued=status.max_queued))
    response.storage.CopyFrom(
        pb.Storage(
            read_bytes_per_s=status.read_bytes_per_s,
            uses_direct_io=uses_direct_io,
            pass_bytes=status.plan_bytes,
            pinned_bytes=status.pinned_bytes,
        )
    )
    response.totals.CopyFrom(
        pb.Totals(
            passes=status.n_passes,
            rows=status.total_rows,
            streamed_bytes=status.streamed_bytes_total,
            head_bytes=status.head_bytes_total,
            embedding_bytes=status.embedding_bytes_total,
            device_bytes=status.device_bytes_total,
            storage_wait_s=status.storage_wait_s_total,
            compute_s=status.compute_s_total,
            storage_idle_s=status.storage_idle_s_total,
        )
    )
