"""The memory section of GetStatus: the ledger's grants, the process, its cgroup and the pressure, as they are now."""

from __future__ import annotations

from sipd.cgroup import MemoryCgroup
from sipd.engine.request import EngineStatus
from sipd.memory import Ledger
from sipd.pressure import Pressure, read_pressure
from sipd.process_memory import read_process_memory
from sipd.v1 import status_pb2 as pb


def describe_memory(ledger: Ledger | None, cgroup: MemoryCgroup | None, status: EngineStatus | None) -> pb.Memory:
    """Returns the section; what is not there yet (ledger, engine) or not at all (cgroup) leaves its fields unset."""
    memory = read_process_memory()
    message = pb.Memory(rss_anon_bytes=memory.rss_anon, rss_file_bytes=memory.rss_file, rss_peak_bytes=memory.rss_peak)
    if ledger is not None:
        message.budget_bytes = ledger.limit_bytes
        message.limit_changes = 0 if ledger.watch is None else ledger.watch.n_changes
        for term in ledger.terms():
            message.ledger.add(name=term.name, bytes=term.n_bytes)
    if status is not None:
        message.kv_used_bytes = status.kv_bytes_in_use
        message.kv_granted_bytes = status.kv_bytes_granted
        message.kv_cached_bytes = status.kv_bytes_cached
    if cgroup is not None:
        _fill_cgroup(message.cgroup, cgroup)
    _fill_pressure(message.memory_pressure, read_pressure("memory", cgroup))
    _fill_pressure(message.io_pressure, read_pressure("io", cgroup))
    return message


def _fill_pressure(message: pb.Pressure, pressure: Pressure | None) -> None:
    """Leaves the message absent where the kernel does not tell."""
    if pressure is None:
        return
    message.some_avg10, message.some_avg60 = pressure.some.avg10, pressure.some.avg60
    if pressure.full is not None:
        message.full_avg10, message.full_avg60 = pressure.full.avg10, pressure.full.avg60


def _fill_cgroup(message: pb.Cgroup, cgroup: MemoryCgroup) -> None:
    pages = cgroup.page_bytes()
    message.version = cgroup.version
    message.current_bytes = cgroup.current_bytes() or 0
    message.anon_bytes, message.file_bytes = pages.anonymous, pages.file
    limit = cgroup.limit_bytes()
    if limit is not None:
        message.limit_bytes = limit
    events = cgroup.events()
    for name in ("max", "high", "oom", "oom_kill"):
        count = getattr(events, name)
        if count is not None:
            setattr(message, f"{name}_events", count)
