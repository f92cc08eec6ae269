"""An executor without a model: the next token is the last one plus one, and passes wait where a test wants them to.

Invariant: every wait has a deadline, so that an engine that hangs fails its test.
"""

from __future__ import annotations

import ctypes
import mmap
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any, cast

from sipd.engine.executor import Executor
from sipd.engine.kv_cache import PagePool
from sipd.engine.loop import Engine, EngineLimits
from sipd.engine.page_memory import PageMemory
from sipd.engine.prefix_cache import PrefixCache
from sipd.engine.request import FinishReason, Outcome, Request, SampledToken
from sipd.engine.reuse import Reuse
from sipd.engine.sampler import Sampler
from sipd.engine.sampling import SamplingOptions
from sipd.engine.sessions import Sessions
from sipd.kernels import binding
from sipd.memory import Ledger
from sipd.models.forward import PassResult
from sipd.weights.probe import ProbeResult
from sipd.weights.stream import StreamCounters

if TYPE_CHECKING:
    Logits = ctypes._Pointer[ctypes.c_float]

VOCAB_SIZE = 997
DEADLINE_S = 20.0
BYTES_PER_PASS = 1000
PAGE_BYTES = 4096
Row = tuple[int, int, int, int]


def pass_result(status: int, **values: float | frozenset[int]) -> PassResult:
    """What a pass did; whatever is not named is 0."""
    numbers: dict[str, Any] = (
        {each.name: 0 for each in fields(PassResult)} | {"dropped": frozenset()} | values | {"status": status}
    )
    return PassResult(**numbers)


class FakeExecutor:
    """Has what the engine uses of an Executor."""

    def __init__(self, max_rows: int) -> None:
        self.vocab_size = VOCAB_SIZE
        self.max_rows = max_rows
        self.max_logit_rows = max_rows
        self.probe = ProbeResult()
        self.n_layers = 4
        self.isa = "fake"
        self.arithmetic_contract = 1
        self.uses_direct_io = False
        self.streamed_plan_bytes = BYTES_PER_PASS
        self.pinned_bytes = 0
        self.control = binding.Control.of(max_rows)
        self.passes: list[list[Row]] = []
        self.faults: deque[Exception | None] = deque()  # one for each pass to come; None: no fault
        self.lasting_fault: Exception | None = None
        self.n_resets = 0
        self.copies: list[tuple[int, int]] = []
        self.is_closed = False
        self.entered: queue.Queue[list[Row]] = queue.Queue()
        self._held = threading.Event()
        self._go = threading.Semaphore(0)
        self._layer = threading.Semaphore(0)
        self._at_layer = threading.Event()
        self._logits: list[ctypes.Array[ctypes.c_float]] = []

    def hold(self) -> None:
        """From now on a pass waits, once it is under way, until it is let go or cancelled."""
        self._held.set()

    def let_go(self, n_passes: int = 1) -> None:
        """Lets held passes run to their end."""
        self._go.release(n_passes)

    def let_go_in_mid_pass(self) -> None:
        """Lets a held pass run on by a layer: what is to be dropped by now leaves it, the rest is held again."""
        self._layer.release()
        assert self._at_layer.wait(DEADLINE_S)
        self._at_layer.clear()

    def free(self) -> None:
        """No pass waits any more."""
        self._held.clear()
        self._go.release()

    def wait_for_pass(self) -> list[Row]:
        """The rows of the next pass that is under way."""
        return self.entered.get(timeout=DEADLINE_S)

    def run(
        self, rows: Sequence[Row], n_logits: int, pages: Sequence[Sequence[int]], is_unwanted: Callable[[], bool]
    ) -> PassResult:
        assert not is_unwanted()
        assert [row[3] for row in rows if row[3] >= 0] == list(range(n_logits))
        assert all(len(pages[row[2]]) * binding.PAGE_POSITIONS > row[1] for row in rows)
        self.passes.append(list(rows))
        self.entered.put(list(rows))
        if self._held.is_set():
            for _ in range(int(DEADLINE_S / 0.01)):
                if self._layer.acquire(blocking=False):
                    self._drop(len(pages))
                    self._at_layer.set()
                if self._go.acquire(timeout=0.01) or self.control.cancel:
                    break
        self.control.steps += 1
        if self.control.cancel:
            return pass_result(binding.PASS_CANCELLED)
        fault = self.faults.popleft() if self.faults else self.lasting_fault
        if fault is not None:
            raise fault
        self._logits = []
        for token, _, _, logits_row in rows:
            if logits_row >= 0:
                logits = (ctypes.c_float * VOCAB_SIZE)()
                logits[(token + 1) % VOCAB_SIZE] = 30.0
                self._logits.append(logits)
        return pass_result(
            binding.PASS_DONE,
            streamed_bytes=BYTES_PER_PASS,
            head_bytes=100,
            embedding_bytes=len(rows),
            storage_wait_s=0.25,
            total_s=1.0,
            dropped=self.control.dropped(len(pages)),
        )

    def _drop(self, n_sequences: int) -> None:
        for index in range(n_sequences):
            if self.control.drops[index] == binding.DROP:
                self.control.drops[index] = binding.DROPPED

    def logits(self, row: int) -> Logits:
        return ctypes.cast(self._logits[row], ctypes.POINTER(ctypes.c_float))

    def copy_page(self, source: int, target: int) -> None:
        self.copies.append((source, target))

    def give_back(self, _n_bytes: int) -> int:
        return 0

    def take_back(self, _n_bytes: int) -> int:
        return 0

    def reset(self) -> None:
        self.n_resets += 1

    def counters(self) -> StreamCounters:
        return StreamCounters(BYTES_PER_PASS * len(self.passes), 0, 1.0)

    def close(self) -> None:
        self.is_closed = True


class Sink:
    """Keeps everything that the engine delivers."""

    def __init__(self, *, stop_after: int = 0, on_token: Callable[[], None] | None = None) -> None:
        self.ids: list[int] = []
        self.n_started = 0
        self.outcomes: queue.Queue[Outcome] = queue.Queue()
        self._stop_after = stop_after
        self._on_token = on_token

    def started(self) -> None:
        self.n_started += 1

    def token(self, token: SampledToken) -> bool:
        self.ids.append(token.token_id)
        if self._on_token is not None:
            self._on_token()
        return len(self.ids) == self._stop_after

    def finished(self, outcome: Outcome) -> None:
        self.outcomes.put(outcome)

    def wait(self) -> Outcome:
        return self.outcomes.get(timeout=DEADLINE_S)

    def reason(self) -> FinishReason:
        return self.wait().reason


class Rig:
    """An engine over a fake executor."""

    def __init__(
        self,
        *,
        max_rows: int = 64,
        n_pages: int = 64,
        context_tokens: int = 512,
        max_active: int = 4,
        max_queued: int = 8,
        has_cache: bool = False,
        draft_tokens: int = 0,
    ) -> None:
        self.executor = FakeExecutor(max_rows)
        self.pool = PagePool(n_pages, PAGE_BYTES)
        cache = PrefixCache(self.pool) if has_cache else None
        sessions = Sessions(cache, 4, 3600.0) if cache is not None else None
        self.reuse = Reuse(self.pool, cache, sessions, self.executor.copy_page)
        arena = mmap.mmap(-1, n_pages * PAGE_BYTES)
        grant = Ledger(n_pages * PAGE_BYTES, 0, 0).grant("KV cache", n_pages * PAGE_BYTES)

        def page(index: int) -> memoryview:
            return memoryview(arena)[index * PAGE_BYTES : (index + 1) * PAGE_BYTES]

        self.engine = Engine(
            cast("Executor", self.executor),
            Sampler(binding.load_library(), VOCAB_SIZE),
            self.reuse,
            EngineLimits(
                context_tokens=context_tokens,
                max_active=max_active,
                max_queued=max_queued,
                rows_while_decoding=max_rows,
                draft_tokens=draft_tokens,
            ),
            page_memory=PageMemory(self.pool, grant, page, least_pages=1),
        )

    def request(
        self,
        n_prompt: int = 3,
        max_tokens: int = 4,
        *,
        sink: Sink | None = None,
        first: int = 0,
        deadline: float | None = None,
        end_ids: frozenset[int] = frozenset(),
    ) -> tuple[Request, Sink]:
        """A request for the tokens first, first + 1 ..., and its sink; not submitted."""
        sink = sink or Sink()
        prompt = tuple(range(first, first + n_prompt))
        return Request("r", prompt, max_tokens, SamplingOptions(), sink, end_ids, deadline), sink

    def submit(self, n_prompt: int = 3, max_tokens: int = 4, *, sink: Sink | None = None) -> tuple[Request, Sink]:
        """Submits a plain request."""
        request, sink = self.request(n_prompt, max_tokens, sink=sink)
        self.engine.submit(request)
        return request, sink


@contextmanager
def rig(
    *,
    max_rows: int = 64,
    n_pages: int = 64,
    context_tokens: int = 512,
    max_active: int = 4,
    max_queued: int = 8,
    has_cache: bool = False,
    draft_tokens: int = 0,
) -> Iterator[Rig]:
    """Runs an engine; at the end nothing may be left of any request."""
    one = Rig(
        max_rows=max_rows,
        n_pages=n_pages,
        context_tokens=context_tokens,
        max_active=max_active,
        max_queued=max_queued,
        has_cache=has_cache,
        draft_tokens=draft_tokens,
    )
    try:
        yield one
    finally:
        one.executor.free()
        one.engine.stop()
    assert one.executor.is_closed
    assert one.pool.n_promised == 0, "a promise was not given back"
    assert one.pool.n_filled == (0 if one.reuse.cache is None else one.reuse.cache.n_idle)
