"""All state of one request, on one object; the engine thread owns it from `submit` to `finish`."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sipd.engine.sampling import SamplingOptions
from sipd.errors import SipdError


class Priority(enum.IntEnum):
    """Who goes first when not everyone can: lower values do."""

    INTERACTIVE = 0
    BACKGROUND = 1


class FinishReason(enum.Enum):
    """Why a request ended."""

    STOP = "stop"  # an end-of-generation token, or a stop string or stop token id of the request
    LENGTH = "length"  # max_tokens reached
    CONTEXT = "context"  # the context is full
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SampledToken:
    """One sampled token. `logprob` and `top` (id, logprob) are there when the request asked for logprobs."""

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class Usage:
    """What a request cost, counted by the engine; bytes are plan bytes of its passes, one left early whole."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens whose keys and values were there already, in memory or on disk
    restored_tokens: int = 0  # the part of cached_tokens that came from disk
    drafted_tokens: int = 0  # guessed by speculation and verified in a pass
    accepted_tokens: int = 0  # the part of drafted_tokens that was right
    passes: int = 0
    prefill_passes: int = 0
    streamed_bytes: int = 0  # all weight bytes read in its passes: blocks, head and embedding rows
    head_bytes: int = 0  # the part of streamed_bytes that is the output head
    embedding_bytes: int = 0  # the part of streamed_bytes that is embedding rows
    kv_bytes: int = 0  # KV cache pages held at the end
    queue_s: float = 0.0  # submit to first pass
    first_token_s: float = 0.0  # submit to first token; 0 when there was none
    total_s: float = 0.0  # submit to finish
    storage_wait_s: float = 0.0  # compute waiting for storage, summed over its passes


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended: `error` is set exactly when reason is CANCELLED, DEADLINE or ERROR."""

    reason: FinishReason
    usage: Usage
    end_token_id: int | None = None  # the end token or stop token that ended it, when one did
    error: SipdError | None = None


class Sink(Protocol):
    """Where the engine thread delivers; implementations must not block and must not raise."""

    def started(self) -> None:
        """The request was admitted: its passes begin. Again after it gave way."""

    def token(self, token: SampledToken) -> bool:
        """One token; returns True when the text is complete (a stop string matched) and the request shall end."""

    def finished(self, outcome: Outcome) -> None:
        """Called exactly once, last."""


def _never_behind() -> bool:
    return False


@dataclass(eq=False, slots=True)
class Request:
    """One generation. Fields up to `sink` are set by the server; the rest belongs to the engine thread."""

    request_id: str
    prompt_ids: Sequence[int]
    max_tokens: int
    sampling: SamplingOptions
    sink: Sink
    end_ids: frozenset[int] = frozenset()  # generation ends when one of these is sampled
    deadline: float | None = None  # time.monotonic() seconds
    is_reader_behind: Callable[[], bool] = _never_behind  # then the request sits passes out; its pages stay
    client: str = ""  # whose request it is: places are shared between clients, not between requests
    owner: str = ""  # who may take over parts of pages that it leaves: the client, whatever connection it uses
    priority: Priority = Priority.INTERACTIVE
    session: str = ""  # OWNER/NAME, scoped by the server: keys and values are kept for its next request
    uses_prefix_cache: bool = True  # may take keys and values from earlier requests, and leave its own
    speculates: bool = True  # drafts may be verified in its passes

    output_ids: list[int] = field(default_factory=list)
    n_computed: int = 0  # positions whose keys and values are in the cache
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class RequestProgress:
    """Where a live request stands; a snapshot, readable from any thread."""

    queue_position: int  # 0: admitted
    prompt_tokens_done: int
    prompt_tokens: int
    layer: int  # of the pass under way
    n_layers: int


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """A snapshot of the engine for GetStatus, STATUS= and the watchdog; readable from any thread."""

    n_active: int
    n_queued: int
    max_queued: int
    n_passes: int
    total_rows: int
    plan_bytes: int  # unpinned bytes that one pass streams now
    pinned_bytes: int
    streamed_bytes_total: int
    device_bytes_total: int
    head_bytes_total: int
    embedding_bytes_total: int
    read_bytes_per_s: float  # since start: bytes over the time readers were busy
    storage_wait_s_total: float
    compute_s_total: float
    storage_idle_s_total: float  # passes without a read in flight
    reader_busy_s_total: float  # any time with a read in flight
    kv_bytes_in_use: int
    kv_bytes_granted: int
    kv_bytes_cached: int  # pages of ended requests, kept for reuse and given up when pages are wanted
    max_rows: int  # of a pass
    row_cap: int  # rows of a pass while someone decodes
    cached_tokens_total: int
    restored_tokens_total: int  # the part of cached_tokens_total that came from disk
    n_sessions: int
    drafted_tokens_total: int
    accepted_tokens_total: int
    probe_rates: tuple[tuple[int, int, float], ...]  # (reads in flight, bytes of one, bytes/s) tried at start
    n_readers: int  # reads in flight
    read_size: int  # largest read, bytes
    progress_count: int  # grows with every block done and every idle tick
    is_alive: bool
    last_error: str
    snapshot_fault: tuple[str, str] | None  # path and cause, while snapshots cannot be written or hang
