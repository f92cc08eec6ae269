"""One structured record per request: to systemd's journal, or as one logfmt line on stderr.

Invariant: a record holds counts, times and names, never prompt or reply text. Fields are listed in `record_fields`.
A flood of refused requests never takes more than half of what journald takes from a service: the rest is one count.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sipd.cgroup import MemoryCgroup
from sipd.engine.request import Usage
from sipd.foreign_text import printable
from sipd.process_memory import ProcessMemory

REQUEST_MESSAGE_ID = "5d0c6d1a1f5b4a2f9a6f0e4c3b7d9e21"  # fixed: journalctl MESSAGE_ID=… finds all request records
_JOURNAL_SOCKET = Path("/run/systemd/journal/socket")
_LOG = logging.getLogger("sipd.request")

JournalSend = Callable[..., object]

REFUSED = "refused"
BURST_S = 30.0  # journald's RateLimitIntervalSec=, in which it takes 10,000 messages of a service and drops others
MOST_REFUSED = 5_000  # records of refused requests in that time


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """What is known of a request at its end. `finish_reason` is an engine reason or REFUSED."""

    request_id: str
    model: str
    finish_reason: str
    usage: Usage
    memory: ProcessMemory
    anonymous_peak: int
    cgroup_current: int | None = None
    cgroup_peak: int | None = None
    error: str = ""  # the stable reason string
    client: str = ""  # by the rule of client_identity
    priority: str = ""  # "interactive" or "background"
    session: str = ""


def record_fields(record: RequestRecord) -> dict[str, str]:
    """Returns the record as journal fields: bytes and counts as integers, times in seconds; unknown ones left out."""
    usage, memory = record.usage, record.memory
    values: dict[str, object] = {
        "SIPD_REQUEST_ID": record.request_id,
        "SIPD_MODEL": record.model,
        "SIPD_FINISH_REASON": record.finish_reason,
        "SIPD_ERROR": record.error or None,
        "SIPD_CLIENT": record.client or None,
        "SIPD_PRIORITY": record.priority or None,
        "SIPD_SESSION": record.session or None,
        "SIPD_PROMPT_TOKENS": usage.prompt_tokens,
        "SIPD_COMPLETION_TOKENS": usage.completion_tokens,
        "SIPD_CACHED_TOKENS": usage.cached_tokens,
        "SIPD_RESTORED_TOKENS": usage.restored_tokens,
        "SIPD_DRAFTED_TOKENS": usage.drafted_tokens,
        "SIPD_ACCEPTED_TOKENS": usage.accepted_tokens,
        "SIPD_PASSES": usage.passes,
        "SIPD_PREFILL_PASSES": usage.prefill_passes,
        "SIPD_STREAMED_BYTES": usage.streamed_bytes,
        "SIPD_HEAD_BYTES": usage.head_bytes,
        "SIPD_EMBEDDING_BYTES": usage.embedding_bytes,
        "SIPD_KV_BYTES": usage.kv_bytes,
        "SIPD_QUEUE_S": f"{usage.queue_s:.6f}",
        "SIPD_FIRST_TOKEN_S": f"{usage.first_token_s:.6f}",
        "SIPD_TOTAL_S": f"{usage.total_s:.6f}",
        "SIPD_STORAGE_WAIT_S": f"{usage.storage_wait_s:.6f}",
        "SIPD_RSS_ANON": memory.rss_anon,
        "SIPD_RSS_FILE": memory.rss_file,
        "SIPD_RSS_PEAK": memory.rss_peak,
        "SIPD_RSS_ANON_PEAK": record.anonymous_peak,
        "SIPD_CGROUP_CURRENT": record.cgroup_current,
        "SIPD_CGROUP_PEAK": record.cgroup_peak,
    }
    return {name: str(value) for name, value in values.items() if value is not None}


def logfmt(fields: Mapping[str, str]) -> str:
    """Returns `request_id=… model=…` on one line: the journal's names without SIPD_, quoted where needed."""
    return " ".join(f"{name.removeprefix('SIPD_').lower()}={_quoted(value)}" for name, value in fields.items())


class RequestJournal:
    """Writes request records; owned by the event loop's thread. A journal that fails is replaced by stderr for good."""

    def __init__(self, send: JournalSend | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._send = send
        self._clock = clock
        self._n_refused = 0  # of the burst that ends at _burst_end
        self._burst_end = 0.0

    def write(self, record: RequestRecord) -> None:
        """Writes one record, unless it is one too many of refused requests."""
        if record.finish_reason == REFUSED and not self._has_room():
            return
        fields = record_fields(record)
        if self._send is not None:
            message = f"request {record.request_id}: {record.finish_reason}, {record.usage.completion_tokens} tokens"
            try:
                self._send(message, MESSAGE_ID=REQUEST_MESSAGE_ID, PRIORITY="6", SYSLOG_IDENTIFIER="sipd", **fields)
            except OSError as error:
                _LOG.warning("the journal cannot be written, records go to stderr: %s", error)
                self._send = None
            else:
                return
        _LOG.info("request %s", logfmt(fields))

    def _has_room(self) -> bool:
        """Counts one more refused request; False when it is not to be written."""
        now = self._clock()
        if now >= self._burst_end:
            if self._n_refused > MOST_REFUSED:
                n_left_out = self._n_refused - MOST_REFUSED
                _LOG.warning("%d more requests were refused in %g s: they left no records", n_left_out, BURST_S)
            self._n_refused, self._burst_end = 0, now + BURST_S
        self._n_refused += 1
        return self._n_refused <= MOST_REFUSED


def find_journal_send(socket_path: Path = _JOURNAL_SOCKET) -> JournalSend | None:
    """Returns systemd-python's send when a journal listens here and the package is installed, else None."""
    if not socket_path.is_socket():
        return None
    try:
        journal = importlib.import_module("systemd.journal")
    except ImportError:
        _LOG.info("systemd-python is not installed: request records go to stderr")
        return None
    send: JournalSend = journal.send
    return send


def cgroup_figures(cgroup: MemoryCgroup | None) -> tuple[int | None, int | None]:
    """Returns (current, peak) bytes of the cgroup, None for what is not known."""
    return (None, None) if cgroup is None else (cgroup.current_bytes(), cgroup.peak_bytes())


def _quoted(value: str) -> str:
    if value and not any(char in ' "=\\' or not char.isprintable() for char in value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{printable(escaped)}"'
