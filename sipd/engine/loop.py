"""The engine: one thread that owns the model and turns requests into passes.

Invariant: every submitted request gets `finished` exactly once; a fault in a pass ends the requests of that pass and
no others; the thread's death is visible in `status().is_alive`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from sipd.engine.delivery import Delivery, charge
from sipd.engine.draft_model import DraftModel
from sipd.engine.drafters import Drafters
from sipd.engine.executor import Executor
from sipd.engine.keeper import Keeper
from sipd.engine.memory_fit import MemoryFit
from sipd.engine.pace import Pace
from sipd.engine.page_memory import PageMemory
from sipd.engine.pass_plan import PassPlan, Sequence
from sipd.engine.request import (
    EngineStatus,
    FinishReason,
    Outcome,
    Request,
    RequestProgress,
)
from sipd.engine.request_check import check_request
from sipd.engine.reuse import Reuse
from sipd.engine.sampler import Sampler
from sipd.engine.scheduler import Scheduler
from sipd.engine.snapshots import Snapshots
from sipd.engine.status import snapshot
from sipd.engine.totals import Totals
from sipd.engine.unwanted import how_it_ends, is_late, why_unwanted
from sipd.errors import (
    DataLoss,
    Draining,
    EngineFault,
    Overloaded,
    SipdError,
    StorageFault,
)
from sipd.kernels import binding

_LOG = logging.getLogger("sipd.engine")
IDLE_TICK_S = 1.0  # how often an idle engine shows that it is alive
PARKED_TICK_S = 0.02  # how often an engine looks again whose readers are all behind
MAX_FAILED_PASSES = 5  # in a row, for reasons of ours: then the engine gives up and says so


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """What the engine takes. `rows_while_decoding` None: found out by measurement; `draft_tokens` 0: no speculation."""

    context_tokens: int
    max_active: int
    max_queued: int
    rows_while_decoding: int | None = None
    draft_tokens: int = 0


class Engine:
    """Takes requests from any thread; everything else happens on its own thread."""

    def __init__(
        self,
        executor: Executor,
        sampler: Sampler,
        reuse: Reuse,
        limits: EngineLimits,
        *,
        draft_model: DraftModel | None = None,
        snapshots: Snapshots | None = None,
        page_memory: PageMemory | None = None,
    ) -> None:
        """Starts the thread."""
        self.context_tokens = limits.context_tokens
        self.vocab_size = executor.vocab_size
        self.rows_per_pass = executor.max_rows
        self._executor = executor
        self._keeper = Keeper(reuse, snapshots)
        self._pace = Pace(limits.rows_while_decoding, executor.max_rows)
        self._scheduler = Scheduler(
            reuse, self._pace, executor.max_rows, limits.max_active, executor.max_logit_rows, self._give_way
        )
        self._drafters = Drafters(limits.draft_tokens, self._pace, sampler, draft_model)
        self._max_queued = limits.max_queued
        self._totals = Totals()
        self._delivery = Delivery(
            executor,
            sampler,
            self._drafters,
            self._totals,
            limits.context_tokens,
            lambda request: time.monotonic() - self._submitted[request],
            self._end_sequence,
        )
        self._wake = threading.Condition()
        self._submitted: dict[Request, float] = {}  # live requests and when they came; guarded by _wake
        self._cancelled: set[Request] = set()
        self._in_pass: tuple[Request, ...] = ()
        self._is_draining = False
        self._is_stopping = False
        self._is_alive = True
        self._last_error = ""
        self._n_idle_ticks = 0
        self._memory = MemoryFit(executor, page_memory, self._wake)
        if snapshots is not None:
            snapshots.wake = self._notify
        self._thread = threading.Thread(target=self._run, name="sipd-engine", daemon=True)
        self._thread.start()

    @property
    def isa(self) -> str:
        """Name of the kernels in use."""
        return self._executor.isa

    @property
    def arithmetic_contract(self) -> int:
        """Version of the arithmetic contract: equal versions give equal tokens."""
        return self._executor.arithmetic_contract

    @property
    def uses_direct_io(self) -> bool:
        """Whether reads bypass the page cache now."""
        return self._executor.uses_direct_io

    def submit(self, request: Request) -> None:
        """Queues a request; raises InvalidRequest, PromptTooLong, OverBudget, Overloaded, Draining or EngineFault."""
        with self._wake:
            check_request(request, self.context_tokens, self._keeper.reuse.pool.n_pages)
            if not self._is_alive:
                raise EngineFault(f"the engine has stopped: {self._last_error}")
            if self._is_draining:
                raise Draining("the daemon is stopping")
            n_waiting = len(self._scheduler.waiting)
            most = self._scheduler.queue_share(request.priority, self._max_queued)
            if n_waiting >= most + max(0, self._scheduler.n_free_places):
                raise Overloaded(f"{n_waiting} requests are waiting, the queue holds {most} of its priority", 1.0)
            self._submitted[request] = time.monotonic()
            self._scheduler.waiting.append(request)
            self._wake.notify()

    def cancel(self, request: Request) -> None:
        """Ends a request within one block; does nothing when it has ended."""
        is_queued = False
        with self._wake:
            if request not in self._submitted:
                return
            if request in self._scheduler.waiting:
                self._scheduler.waiting.remove(request)
                is_queued = True
            elif request not in self._cancelled:
                self._cancelled.add(request)
                if request in self._in_pass:
                    self._executor.control.drops[self._in_pass.index(request)] = binding.DROP
                if self._in_pass and self._cancelled.issuperset(self._in_pass):
                    self._executor.control.cancel = 1
                self._wake.notify()
        if is_queued:
            self._finish(request, *how_it_ends(request))

    def progress(self, request: Request) -> RequestProgress:
        """Where a request stands; a snapshot."""
        with self._wake:
            position = self._scheduler.position(request)
        return RequestProgress(
            queue_position=position,
            prompt_tokens_done=min(request.n_computed, len(request.prompt_ids)),
            prompt_tokens=len(request.prompt_ids),
            layer=max(0, self._executor.control.layer) if position == 0 else 0,
            n_layers=self._executor.n_layers,
        )

    def status(self) -> EngineStatus:
        """A snapshot of everything that can be counted."""
        with self._wake:
            return snapshot(
                self._executor,
                self._scheduler,
                self._keeper.reuse,
                self._totals,
                max_queued=self._max_queued,
                n_idle_ticks=self._n_idle_ticks,
                is_alive=self._is_alive,
                last_error=self._last_error,
                snapshot_fault=self._keeper.snapshot_fault,
            )

    def shrink(self, over: Callable[[], int]) -> None:
        """Asks for memory to be given back at the next border between passes; any thread, never blocks.

        `over()` tells the bytes that are too much at that moment.
        """
        self._memory.shrink(over)

    def grow(self, room: Callable[[], int]) -> None:
        """Asks for memory that was given back to be taken again, as much as `room()` tells then; as `shrink`."""
        self._memory.grow(room)

    def drain(self, grace_s: float) -> None:
        """Takes no new requests, waits up to `grace_s` for live ones, then cancels them. Blocks."""
        deadline = time.monotonic() + grace_s
        with self._wake:
            self._is_draining = True
            while self._submitted and (left := deadline - time.monotonic()) > 0:
                self._wake.wait(min(left, IDLE_TICK_S))
            unfinished = list(self._submitted)
        for request in unfinished:
            self.cancel(request)
        with self._wake:
            self._wake.wait_for(lambda: not self._submitted or not self._is_alive, timeout=2 * IDLE_TICK_S)

    def stop(self) -> None:
        """Ends the thread and frees the model. Blocks until the block under way is done."""
        with self._wake:
            self._is_draining = True
            self._is_stopping = True
            self._executor.control.cancel = 1
            self._drafters.stop()
            self._wake.notify_all()
        self._thread.join()
        if not self._keeper.close():
            _LOG.warning("a snapshot hangs in the disk: its thread is left behind")
            return
        self._drafters.close()
        self._executor.close()

    def _notify(self) -> None:
        with self._wake:
            self._wake.notify()

    # --- the engine thread ---

    def _run(self) -> None:
        n_failed = 0
        try:
            while self._wait_for_work():
                plan = self._scheduler.plan_pass(self._drafters.draft)
                if not plan.rows:  # every reader is behind
                    self._rest()
                    continue
                try:
                    self._pass(plan)
                    n_failed = 0
                except StorageFault as error:  # not ours: the next pass may find the disk again
                    self._fail_pass(plan, error)
                except Exception as error:  # noqa: BLE001 - the guard that keeps one pass's fault from the others
                    n_failed += 1
                    _LOG.exception("pass failed")
                    self._fail_pass(plan, EngineFault(f"the pass failed: {type(error).__name__}: {error}"))
                    if n_failed >= MAX_FAILED_PASSES:
                        self._last_error = f"{n_failed} passes in a row failed; the last: {error}"
                        return
        except Exception as error:
            self._last_error = f"the engine failed between passes: {type(error).__name__}: {error}"
            raise
        finally:
            self._end()

    def _wait_for_work(self) -> bool:
        """Drops unwanted sequences and admits new ones; False when the engine is to stop."""
        while True:
            self._keeper.keep_house(time.monotonic())
            self._drop_unwanted()
            self._memory.settle(self._scheduler.waiting)
            with self._wake:
                if self._is_stopping:
                    return False
                admitted = self._scheduler.admit()
                if not self._scheduler.active:
                    self._n_idle_ticks += 1
                    if not self._keeper.has_news:  # since keep_house looked
                        self._wake.wait(IDLE_TICK_S)
                    continue
            for sequence in admitted:
                request = sequence.request
                if not request.usage.passes:  # else it had given way
                    request.usage.queue_s = time.monotonic() - self._submitted[request]
                self._keeper.begin(sequence)
                request.sink.started()
            return True

    def _give_way(self, sequence: Sequence) -> None:
        """A sequence goes back to the queue."""
        self._drafters.forget(sequence)
        self._keeper.give_way(sequence)

    def _rest(self) -> None:
        """Waits a moment for readers to catch up."""
        with self._wake:
            self._n_idle_ticks += 1
            self._wake.wait(PARKED_TICK_S)

    def _drop_unwanted(self) -> None:
        """Ends sequences and queued requests that were cancelled or whose deadline has passed."""
        now = time.monotonic()
        for sequence in list(self._scheduler.active):
            cause = why_unwanted(sequence, now, is_cancelled=sequence.request in self._cancelled)
            if cause is not None:
                self._end_sequence(sequence, *cause)
        with self._wake:
            waiting = self._scheduler.waiting
            # one that gave way may have been cancelled while it ran
            unwanted = [each for each in waiting if each in self._cancelled or is_late(each, now)]
            for request in unwanted:
                waiting.remove(request)
        for request in unwanted:
            self._finish(request, *how_it_ends(request))

    def _pass(self, plan: PassPlan) -> None:
        """Runs one pass and delivers what it gave."""
        with self._wake:
            self._in_pass = tuple(sequence.request for sequence in plan.sequences)
            if self._cancelled.issuperset(self._in_pass):
                self._in_pass = ()
                return
            # under the lock, so that a cancel for this pass is never wiped out
            self._executor.control.cancel = int(self._is_stopping)
            for index, request in enumerate(self._in_pass):
                self._executor.control.drops[index] = binding.DROP if request in self._cancelled else binding.KEEP
        busy_s = self._executor.counters().busy_s
        try:
            result = self._executor.run(plan.rows, plan.n_logits, plan.pages, self._is_unwanted)
        finally:
            with self._wake:
                self._in_pass = ()
        read_s = self._executor.counters().busy_s - busy_s
        self._totals.add(result, len(plan.rows), read_s)
        charge(plan, result)
        if result.is_done:
            if not result.dropped:  # else the time is that of fewer rows
                compute_s = result.total_s - result.storage_wait_s
                self._pace.observe(len(plan.rows), compute_s, read_s, plan.n_positions, result.total_s)
            self._deliver_pass(plan, {plan.sequences[index] for index in result.dropped})

    def _deliver_pass(self, plan: PassPlan, dropped: set[Sequence]) -> None:
        """Takes over what a whole pass computed, but for the sequences that were dropped under way."""
        for sequence in plan.sequences:
            if sequence not in dropped:
                sequence.request.n_computed += sequence.n_rows
                self._keeper.computed(sequence)  # before the draw, which may end it
        for sequence, first_logits in plan.sampling:
            if sequence not in dropped and sequence.request not in self._cancelled:
                self._delivery.draw(sequence, first_logits)

    def _is_unwanted(self) -> bool:
        """Whether nobody waits for the pass under way any more; asked while storage is being retried."""
        with self._wake:
            return self._is_stopping or self._cancelled.issuperset(self._in_pass)

    def _end_sequence(
        self,
        sequence: Sequence,
        reason: FinishReason,
        error: SipdError | None = None,
        end_token_id: int | None = None,
    ) -> None:
        sequence.request.usage.kv_bytes = sequence.pages.n_bytes
        with self._wake:
            self._scheduler.remove(sequence)
        self._drafters.forget(sequence)
        self._keeper.end(sequence, time.monotonic())
        self._finish(sequence.request, reason, error, end_token_id)

    def _finish(
        self, request: Request, reason: FinishReason, error: SipdError | None = None, end_token_id: int | None = None
    ) -> None:
        with self._wake:
            began = self._submitted.pop(request, None)
            self._cancelled.discard(request)
            self._wake.notify_all()
        if began is None:
            return
        request.usage.total_s = time.monotonic() - began
        request.sink.finished(Outcome(reason, replace(request.usage), end_token_id, error))

    def _fail_pass(self, plan: PassPlan, error: SipdError) -> None:
        """Ends the requests of a failed pass; the others go on."""
        self._last_error = str(error)
        _LOG.error("%s", error)
        for sequence in plan.sequences:
            if sequence in self._scheduler.active:
                self._end_sequence(sequence, FinishReason.ERROR, error)
        if isinstance(error, DataLoss):
            self._keeper.forget()  # what was computed with the file as it was, by those that ended just now too
        self._executor.reset()

    def _end(self) -> None:
        """The thread's last act: nobody is left waiting."""
        with self._wake:
            self._is_alive = False
            left = list(self._submitted)
            self._scheduler.waiting.clear()
            self._wake.notify_all()
        stopped = Draining("the daemon is stopping") if self._is_stopping else EngineFault(self._last_error)
        for sequence in list(self._scheduler.active):
            self._end_sequence(sequence, FinishReason.ERROR, stopped)
        for request in left:
            self._finish(request, FinishReason.ERROR, stopped)
