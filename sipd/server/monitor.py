"""Looks at the engine and at memory once a second: is it alive, what does STATUS= say, may the watchdog be fed.

Invariant: WATCHDOG=1 follows from the engine's own progress counter, so a wedged engine is restarted by systemd. A
figure that cannot be read for a while stays as it was, and ends nothing.
"""

from __future__ import annotations

import logging

from sipd.cgroup import find_memory_cgroup
from sipd.engine.request import EngineStatus
from sipd.process_memory import ProcessMemory, read_process_memory
from sipd.server.events import Events
from sipd.server.memory_watch import MemoryWatch
from sipd.server.notify import Notifier
from sipd.server.service_state import DaemonState, ServiceState

_LOG = logging.getLogger("sipd.monitor")
_TICK_S = 1.0
_MB = 1e6
_MIB = 1024**2


class Monitor:
    """Owned by the event loop's thread; `tick` is called every `interval_s`."""

    def __init__(
        self, state: ServiceState, notifier: Notifier, watchdog_s: float | None, events: Events | None = None
    ) -> None:
        self._state = state
        self._notifier = notifier
        self._has_watchdog = watchdog_s is not None
        # A third: one late tick and one slow block still make it.
        self.interval_s = _TICK_S if watchdog_s is None else min(_TICK_S, watchdog_s / 3)
        self._last_progress = -1
        self._last_line = ""
        self._events = events or Events()
        self._snapshot_fault: tuple[str, str] | None = None
        self._last_memory = ProcessMemory(0, 0, 0)
        self._has_memory = True  # figures could be read at the last look
        self._memory: MemoryWatch | None = None
        if state.ledger is not None and state.served is not None:
            self._memory = MemoryWatch(state.ledger, state.served.engine, self._events, find_memory_cgroup())

    def tick(self) -> bool:
        """Reports to systemd; returns whether the engine is alive."""
        assert self._state.served is not None
        status = self._state.served.engine.status()
        if not status.is_alive:
            self._state.last_error = status.last_error
            return False
        if self._has_watchdog and status.progress_count != self._last_progress:
            self._notifier.watchdog()
        self._last_progress = status.progress_count
        self._read_memory()
        if self._memory is not None and self._has_memory:  # otherwise limits would seem to be gone
            self._memory.look()
        if status.snapshot_fault and status.snapshot_fault != self._snapshot_fault:
            self._events.snapshot_failed(*status.snapshot_fault)
        self._snapshot_fault = status.snapshot_fault
        line = self.line(status)
        if line != self._last_line:
            self._notifier.status(line)
            self._last_line = line
        if self._state.ledger is not None and status.n_active:
            self._state.ledger.sample_peak()
        return True

    def line(self, status: EngineStatus | None = None) -> str:
        """Returns "serving smollm2, 1 active, 0 queued, 41 MB/s, 212/448 MiB": anonymous memory of the budget."""
        assert self._state.served is not None
        status = status or self._state.served.engine.status()
        word = "draining" if self._state.state is DaemonState.DRAINING else "serving"
        line = f"{word} {self._state.served.name}, {status.n_active} active, {status.n_queued} queued"
        line += f", {status.read_bytes_per_s / _MB:.0f} MB/s, {self._read_memory().rss_anon / _MIB:.0f}"
        if self._state.ledger is not None:
            line += f"/{self._state.ledger.limit_bytes / _MIB:.0f}"
            if self._state.ledger.shortfall().n_bytes:
                return line + " MiB, over the limit: new requests are refused"
        return line + " MiB"

    def _read_memory(self) -> ProcessMemory:
        """Returns this process's memory, or what was read last while it cannot be read (no file descriptor is left)."""
        try:
            self._last_memory, self._has_memory = read_process_memory(), True
        except OSError as error:
            if self._has_memory:
                _LOG.warning("memory figures cannot be read: %s", error)
            self._has_memory = False
        return self._last_memory
