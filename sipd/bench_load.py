"""Drives an engine in process with requests of random token ids, and counts what each phase of them cost.

Invariant: a prefill phase contains no decode pass, and a decode phase counts only passes in which every request
decodes; counters are read when the stream stands still, so that read-ahead is charged to nobody else.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sipd.engine.loop import Engine
from sipd.engine.request import Outcome, Request, SampledToken
from sipd.engine.sampling import SamplingOptions
from sipd.errors import EngineFault
from sipd.memory import Ledger

_SEED = 20  # of the prompts: the same ids in every run
_SAMPLE_S = 0.02
_STILL_S = 0.15  # without a finished read: longer than one 1 MiB read at 7 MB/s
_STILL_LIMIT_S = 10.0


@dataclass(eq=False, slots=True)
class TimedSink:
    """When each token of one request came, by time.monotonic(), and the counters then; written by the engine thread."""

    snapshot: Callable[[], Counts]
    times: list[float] = field(default_factory=list)
    at_first: Counts | None = None
    at_end: Counts | None = None
    outcome: Outcome | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def started(self) -> None:
        """Nothing to do."""

    def token(self, _token: SampledToken) -> bool:
        """Notes the time, and the counters at the first one."""
        self.times.append(time.monotonic())
        if self.at_first is None:
            self.at_first = self.snapshot()
        return False

    def finished(self, outcome: Outcome) -> None:
        """Notes the counters and wakes whoever waits."""
        self.at_end = self.snapshot()
        self.outcome = outcome
        self.done.set()


@dataclass(frozen=True, slots=True)
class Counts:
    """What the engine and the kernel have counted so far. `kernel_read_bytes` is None where it cannot be read."""

    n_passes: int
    n_rows: int
    streamed_bytes: int
    embedding_bytes: int
    device_bytes: int
    kernel_read_bytes: int | None
    storage_wait_s: float
    compute_s: float
    reader_busy_s: float

    def since(self, earlier: Counts) -> Counts:
        """The difference."""
        kernel = None
        if self.kernel_read_bytes is not None and earlier.kernel_read_bytes is not None:
            kernel = self.kernel_read_bytes - earlier.kernel_read_bytes
        return Counts(
            self.n_passes - earlier.n_passes,
            self.n_rows - earlier.n_rows,
            self.streamed_bytes - earlier.streamed_bytes,
            self.embedding_bytes - earlier.embedding_bytes,
            self.device_bytes - earlier.device_bytes,
            kernel,
            self.storage_wait_s - earlier.storage_wait_s,
            self.compute_s - earlier.compute_s,
            self.reader_busy_s - earlier.reader_busy_s,
        )


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase: `n_tokens` in `seconds` of the wall clock.

    `counts` are of the passes behind these tokens; `settled` of all passes between two stills of the stream.
    """

    n_tokens: int
    seconds: float
    counts: Counts
    settled: Counts

    @property
    def tokens_per_s(self) -> float:
        """The rate of all requests together."""
        return self.n_tokens / self.seconds if self.seconds > 0 else 0.0


class Load:
    """`n_clients` requests at a time against one engine; used by one thread."""

    def __init__(self, engine: Engine, ledger: Ledger, *, prompt_tokens: int, n_clients: int) -> None:
        self._engine = engine
        self._ledger = ledger
        self._prompt_tokens = prompt_tokens
        self._n_clients = n_clients
        self._n_sent = 0
        self._at_rest: Counts | None = None

    def first_prefill(self) -> float:
        """Seconds to the last request's first token; sent at once, while the stream may still load what is pinned."""
        began = time.monotonic()
        return max(sink.times[-1] for sink in self._run(1)) - began

    def prefill(self) -> Phase:
        """Every request ends at its first token, so that all passes are prefill."""
        before = self._before()
        began = time.monotonic()
        sinks = self._run(1)
        ended = max(sink.times[-1] for sink in sinks)
        self._at_rest = self._rest()
        counts = self._at_rest.since(before)
        return Phase(self._n_clients * self._prompt_tokens, ended - began, counts, counts)

    def decode(self, n_tokens: int) -> Phase:
        """The rate while all requests decode: from the last one's first token to the first one's end.

        Each gets as many tokens more as passes may lie between the first tokens of the first and the last request.
        """
        before = self._before()
        sinks = self._run(n_tokens + stagger(self._engine.rows_per_pass, self._prompt_tokens, self._n_clients))
        begin = max(sinks, key=lambda sink: sink.times[0])
        end = min(sinks, key=lambda sink: sink.times[-1])
        assert begin.at_first is not None
        assert end.at_end is not None
        first, last = begin.times[0], end.times[-1]
        self._at_rest = self._rest()
        settled = self._at_rest.since(before)
        counts = end.at_end.since(begin.at_first)
        return Phase(counts.n_rows, last - first, counts, settled)  # each row of these passes gave a token

    def _before(self) -> Counts:
        """The counters of the latest rest, if nothing has run since."""
        if self._at_rest is None or self._at_rest.n_passes != self._engine.status().n_passes:
            self._at_rest = self._rest()
        return self._at_rest

    def _rest(self) -> Counts:
        """The counters, once the readers have filled the ring and stand still."""
        n_bytes = -1
        end = time.monotonic() + _STILL_LIMIT_S
        while time.monotonic() < end:
            latest = self._engine.status().device_bytes_total
            if latest == n_bytes:
                break
            n_bytes = latest
            time.sleep(_STILL_S)
        return self._counts()

    def _counts(self) -> Counts:
        status = self._engine.status()
        return Counts(
            status.n_passes,
            status.total_rows,
            status.streamed_bytes_total,
            status.embedding_bytes_total,
            status.device_bytes_total,
            read_kernel_bytes(),
            status.storage_wait_s_total,
            status.compute_s_total,
            status.reader_busy_s_total,
        )

    def _run(self, n_tokens: int) -> list[TimedSink]:
        """Sends the requests and waits for all; raises the error of the first that failed."""
        sinks = [TimedSink(self._counts) for _ in range(self._n_clients)]
        for sink in sinks:
            self._n_sent += 1
            prompt = prompt_ids(self._n_sent, self._prompt_tokens, self._engine.vocab_size)
            request = Request(f"bench-{self._n_sent}", prompt, n_tokens, SamplingOptions(), sink)
            request.uses_prefix_cache = request.speculates = False  # a pass for every token: that is what is measured
            self._engine.submit(request)
        for sink in sinks:
            while not sink.done.wait(_SAMPLE_S):
                self._ledger.sample_peak()
            if sink.outcome is not None and sink.outcome.error is not None:
                raise sink.outcome.error
            if not sink.times:
                raise EngineFault("a request of the benchmark ended without a token")
        return sinks


def stagger(rows_per_pass: int, prompt_tokens: int, n_clients: int) -> int:
    """Passes that prefill may take before the last of several requests decodes; 0 for one client."""
    if n_clients == 1:
        return 0
    return -(-n_clients * prompt_tokens // max(1, rows_per_pass - n_clients)) + n_clients


def prompt_ids(number: int, n_tokens: int, vocab_size: int) -> tuple[int, ...]:
    """The prompt of the `number`-th request: the same in every run, and no two begin alike."""
    generator = random.Random(_SEED + number)  # noqa: S311 - not a secret
    return tuple(generator.randrange(vocab_size) for _ in range(n_tokens))


def read_kernel_bytes(path: Path = Path("/proc/self/io")) -> int | None:
    """Bytes that the kernel has fetched from storage for this process; None where it does not say."""
    try:
        for line in path.read_text(encoding="ascii").splitlines():
            if line.startswith("read_bytes:"):
                return int(line.split()[1])
    except OSError:
        pass
    return None
