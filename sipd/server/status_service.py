"""StatusService: a snapshot of the daemon, answered in every state and without the engine's thread."""

from __future__ import annotations

import time

import sipd
from sipd.cgroup import find_memory_cgroup
from sipd.engine.request import EngineStatus
from sipd.server.memory_status import describe_memory
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
        status = None if state.served is None else state.served.engine.status()
        response = pb.GetStatusResponse(
            version=sipd.__version__,
            state=pb.DaemonState.Name(state.state.value),
            uptime_s=time.monotonic() - state.started_at,
            memory=describe_memory(state.ledger, self._cgroup, status),
            last_error=state.last_error,
        )
        if state.served is not None and status is not None:
            response.model = state.served.name
            response.last_error = response.last_error or status.last_error
            _fill(response, status, uses_direct_io=state.served.engine.uses_direct_io)
            _fill_sharing(response, status, state)
        return response


def _fill(response: pb.GetStatusResponse, status: EngineStatus, *, uses_direct_io: bool) -> None:
    """Copies the engine's figures."""
    response.queue.CopyFrom(pb.Queue(active=status.n_active, queued=status.n_queued, max_queued=status.max_queued))
    response.storage.CopyFrom(
        pb.Storage(
            read_bytes_per_s=status.read_bytes_per_s,
            uses_direct_io=uses_direct_io,
            pass_bytes=status.plan_bytes,
            pinned_bytes=status.pinned_bytes,
            readers=status.n_readers,
            read_bytes=status.read_size,
            probed=[
                pb.ProbedRate(readers=n, read_bytes=size, bytes_per_s=rate) for n, size, rate in status.probe_rates
            ],
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


def _fill_sharing(response: pb.GetStatusResponse, status: EngineStatus, state: ServiceState) -> None:
    """Copies how passes are shared, and what is reused and guessed to need fewer of them."""
    config = state.config
    response.scheduling.CopyFrom(
        pb.Scheduling(
            max_rows_per_pass=status.max_rows,
            rows_while_decoding=status.row_cap,
            max_active=config.max_requests,
            max_requests_per_client=config.max_requests_per_client,
            clients=state.places.n_clients,
        )
    )
    response.prefix_cache.CopyFrom(
        pb.PrefixCache(
            is_on=config.prefix_cache,
            cached_bytes=status.kv_bytes_cached,
            cached_tokens=status.cached_tokens_total,
            restored_tokens=status.restored_tokens_total,
            sessions=status.n_sessions,
            max_sessions=config.max_sessions if config.prefix_cache else 0,
        )
    )
    response.speculation.CopyFrom(
        pb.Speculation(
            is_on=config.speculation,
            drafted_tokens=status.drafted_tokens_total,
            accepted_tokens=status.accepted_tokens_total,
            has_draft_model=config.speculation and config.draft_model is not None,
        )
    )
