"""What an operator should find in the journal: one kind of event, one MESSAGE_ID, one function.

Invariant: ids and field names never change meaning; an event without a journal becomes one line on stderr, with the
same text and fields. Texts hold names and numbers, never prompt or reply text.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from sipd.errors import DataLoss, SipdError, StorageFault
from sipd.foreign_text import printable, sendable
from sipd.memory import MemoryLimit, Shortfall
from sipd.server.journal import REQUEST_MESSAGE_ID, JournalSend, logfmt
from sipd.size import format_size

_LOG = logging.getLogger("sipd.event")
_PRIORITIES = {logging.INFO: "6", logging.WARNING: "4", logging.ERROR: "3"}


@dataclass(frozen=True, slots=True)
class EventKind:
    """A kind of event. `name` is SIPD_EVENT, `message_id` what `journalctl MESSAGE_ID=` finds."""

    name: str
    message_id: str
    level: int


STARTED = EventKind("started", "8f1d1ee1f3d54e6a9d0f2c7be2a4c601", logging.INFO)
STOPPED = EventKind("stopped", "8f1d1ee1f3d54e6a9d0f2c7be2a4c602", logging.INFO)
ENGINE_DEAD = EventKind("engine_dead", "8f1d1ee1f3d54e6a9d0f2c7be2a4c603", logging.ERROR)
STORAGE_FAULT = EventKind("storage_fault", "8f1d1ee1f3d54e6a9d0f2c7be2a4c604", logging.ERROR)
MODEL_CHANGED = EventKind("model_changed", "8f1d1ee1f3d54e6a9d0f2c7be2a4c605", logging.ERROR)
LIMIT_LOWERED = EventKind("limit_lowered", "8f1d1ee1f3d54e6a9d0f2c7be2a4c606", logging.WARNING)
LIMIT_RAISED = EventKind("limit_raised", "8f1d1ee1f3d54e6a9d0f2c7be2a4c607", logging.INFO)
MEMORY_SHRUNK = EventKind("memory_shrunk", "8f1d1ee1f3d54e6a9d0f2c7be2a4c608", logging.WARNING)
LIMIT_MET = EventKind("limit_met", "8f1d1ee1f3d54e6a9d0f2c7be2a4c609", logging.WARNING)
OOM_KILL = EventKind("oom_kill", "8f1d1ee1f3d54e6a9d0f2c7be2a4c60a", logging.ERROR)
REQUEST_REFUSED = EventKind("request_refused", "8f1d1ee1f3d54e6a9d0f2c7be2a4c60b", logging.WARNING)
RELOADED = EventKind("reloaded", "8f1d1ee1f3d54e6a9d0f2c7be2a4c60c", logging.INFO)
RELOAD_FAILED = EventKind("reload_failed", "8f1d1ee1f3d54e6a9d0f2c7be2a4c60d", logging.ERROR)
SNAPSHOT_FAILED = EventKind("snapshot_failed", "8f1d1ee1f3d54e6a9d0f2c7be2a4c60e", logging.WARNING)
CLOCK_JUMPED = EventKind("clock_jumped", "8f1d1ee1f3d54e6a9d0f2c7be2a4c60f", logging.INFO)
CALL_REFUSED = EventKind("call_refused", "8f1d1ee1f3d54e6a9d0f2c7be2a4c610", logging.WARNING)

KINDS = (
    *(STARTED, STOPPED, ENGINE_DEAD, STORAGE_FAULT, MODEL_CHANGED, LIMIT_LOWERED, LIMIT_RAISED, MEMORY_SHRUNK),
    *(LIMIT_MET, OOM_KILL, REQUEST_REFUSED, RELOADED, RELOAD_FAILED, SNAPSHOT_FAILED, CLOCK_JUMPED),
    CALL_REFUSED,
)
MESSAGE_IDS = {"request": REQUEST_MESSAGE_ID} | {kind.name: kind.message_id for kind in KINDS}


class Events:
    """Writes events; any thread. A journal that fails is replaced by stderr for good."""

    def __init__(self, send: JournalSend | None = None) -> None:
        self._send = send

    def started(self, model: str, addresses: str) -> None:
        """The model is verified and the ports are bound."""
        self._write(STARTED, f"serving {model} on {addresses}", SIPD_MODEL=model, SIPD_LISTEN=addresses)

    def stopped(self, seconds: float) -> None:
        """The daemon has drained and ends with exit code 0."""
        self._write(STOPPED, "stopped", SIPD_UPTIME_S=f"{seconds:.0f}")

    def engine_dead(self, cause: str) -> None:
        """The engine's thread has ended; the daemon ends with a code that systemd restarts."""
        self._write(ENGINE_DEAD, f"the engine is dead: {cause}", SIPD_CAUSE=cause)

    def storage(self, fault: StorageFault) -> None:
        """Reading weights failed for good: requests were ended. A file that changed is an event of its own."""
        kind = MODEL_CHANGED if isinstance(fault, DataLoss) else STORAGE_FAULT
        text = f"{'the model file changed' if kind is MODEL_CHANGED else 'storage failed'}: {fault}"
        self._write(kind, text, SIPD_PATH=fault.path, SIPD_OFFSET=fault.offset, SIPD_ERROR=fault.reason)

    def limit_changed(self, before: MemoryLimit, now: MemoryLimit, shortfall: Shortfall) -> None:
        """The memory limit moved under the running daemon."""
        is_lower = now.n_bytes < before.n_bytes
        text = (
            f"the memory limit was {'lowered' if is_lower else 'raised'} from {format_size(before.n_bytes)} to "
            f"{format_size(now.n_bytes)} ({now.source}): "
        )
        if shortfall.n_bytes:
            text += (
                f"{format_size(shortfall.needed_bytes)} are granted, {format_size(shortfall.n_bytes)} too much; new "
                "requests are refused until memory is given back or the limit is raised"
            )
        else:
            text += "everything that is granted fits"
        self._write(
            LIMIT_LOWERED if is_lower else LIMIT_RAISED,
            text,
            SIPD_LIMIT_BEFORE=before.n_bytes,
            SIPD_LIMIT=now.n_bytes,
            SIPD_NEEDED=shortfall.needed_bytes,
            SIPD_OVER=shortfall.n_bytes,
        )

    def memory_shrunk(self, freed_bytes: int, shortfall: Shortfall) -> None:
        """Memory was given back because the limit was lowered."""
        text = f"gave {format_size(freed_bytes)} back: "
        if shortfall.n_bytes:
            text += f"still {format_size(shortfall.n_bytes)} too much, new requests are refused"
        else:
            text += "requests are taken again; passes may stream more until the limit is raised"
        self._write(MEMORY_SHRUNK, text, SIPD_FREED=freed_bytes, SIPD_OVER=shortfall.n_bytes)

    def limit_met(self, n_times: int, seconds: float, limit_bytes: int, anonymous_bytes: int) -> None:
        """The cgroup's charge met its hard limit; file pages count, so this alone is no fault."""
        self._write(
            LIMIT_MET,
            f"the cgroup met its memory limit of {format_size(limit_bytes)} {n_times} times in {seconds:.0f} s, "
            f"{format_size(anonymous_bytes)} of it anonymous: file pages were taken back",
            SIPD_TIMES=n_times,
            SIPD_LIMIT=limit_bytes,
            SIPD_CGROUP_ANON=anonymous_bytes,
        )

    def oom_kill(self, n_processes: int, where: str) -> None:
        """The kernel killed somebody for want of memory, and it was not this process."""
        text = f"the kernel killed {n_processes} process(es) for want of memory in {where}; this daemon was not hit"
        self._write(OOM_KILL, text, SIPD_KILLED=n_processes, SIPD_CGROUP=where)

    def request_refused(self, request_id: str, reason: str, cause: str, n_requests: int) -> None:
        """Requests were refused for want of room, for the same reason: `request_id` is the last of `n_requests`."""
        text = f"request {request_id} refused: {cause}"
        if n_requests > 1:
            text = f"{n_requests} more requests refused, the last of them {request_id}: {cause}"
        self._write(REQUEST_REFUSED, text, SIPD_REQUEST_ID=request_id, SIPD_ERROR=reason, SIPD_REFUSED=n_requests)

    def call_refused(self, client: str, reason: str, cause: str, n_calls: int) -> None:
        """Calls ended without a request to record, for the same reason: `client` made the last of `n_calls`."""
        text = f"call of {client} refused: {cause}"
        if n_calls > 1:
            text = f"{n_calls} more calls refused, the last of them of {client}: {cause}"
        self._write(CALL_REFUSED, text, SIPD_CLIENT=client, SIPD_ERROR=reason, SIPD_REFUSED=n_calls)

    def reloaded(self, what: str) -> None:
        """SIGHUP: these were read again."""
        self._write(RELOADED, f"reloaded {what}", SIPD_RELOADED=what)

    def reload_failed(self, error: SipdError) -> None:
        """SIGHUP: nothing was changed."""
        self._write(RELOAD_FAILED, f"reload failed, everything stays as it was: {error}", SIPD_ERROR=error.reason)

    def snapshot_failed(self, path: str, cause: str) -> None:
        """Keys and values could not be kept on disk (full, read-only, gone); requests go on without."""
        self._write(SNAPSHOT_FAILED, f"snapshots cannot be written to {path}: {cause}", SIPD_PATH=path)

    def clock_jumped(self, seconds: float) -> None:
        """The wall clock was set; deadlines and timings follow the monotonic clock and do not notice."""
        self._write(CLOCK_JUMPED, f"the clock was set by {seconds:+.0f} s", SIPD_SECONDS=f"{seconds:.0f}")

    def _write(self, kind: EventKind, text: str, **fields: object) -> None:
        text = printable(sendable(text))  # a file name may hold line ends, and bytes that are no UTF-8
        values = {"SIPD_EVENT": kind.name} | {name: sendable(str(value)) for name, value in fields.items()}
        if self._send is not None:
            try:
                self._send(
                    text,
                    MESSAGE_ID=kind.message_id,
                    PRIORITY=_PRIORITIES[kind.level],
                    SYSLOG_IDENTIFIER="sipd",
                    **values,
                )
            except OSError as error:
                _LOG.warning("the journal cannot be written, events go to stderr: %s", error)
                self._send = None
            else:
                return
        _LOG.log(kind.level, "%s (%s)", text, logfmt(values))
