"""The engine: one thread that owns the model and turns requests into passes.

Invariant: every submitted request gets `finished` exactly once; a fault in a pass ends the requests of that pass and
no others; the thread's death is visible in `status().is_alive`.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace

from sipd.engine.executor import Executor
from sipd.engine.kv_cache import PagePool
from sipd.engine.request import (
    EngineStatus,
    FinishReason,
    Outcome,
    Request,
    RequestProgress,
    SampledToken,
)
from sipd.engine.sampler import Sampler
from sipd.engine.scheduler import PassPlan, Scheduler, Sequence
from sipd.engine.totals import Totals
from sipd.errors import (
    Cancelled,
    DeadlineExceeded,
    Draining,
    EngineFault,
    InvalidRequest,
    OverBudget,
    Overloaded,
    PromptTooLong,
    SipdError,
    StorageFault,
)

_LOG = logging.getLogger("sipd.engine")
IDLE_TICK_S = 1.0  # how often an idle engine shows that it is alive
PARKED_TICK_S = 0.02  # how often an engine looks again whose readers are all behind
MAX_PARKED_S = 60.0  # a reader that is behind for longer gives its pages up to those who wait
MAX_FAILED_PASSES = 5  # in a row, for reasons of ours: then the engine gives up and says so


class Engine:
    """Takes requests from any thread; everything else happens on its own thread."""

    def __init__(
        self,
        executor: Executor,
        sampler: Sampler,
        pool: PagePool,
        *,
        context_tokens: int,
        max_active: int,
        max_queued: int,
    ) -> None:
        """Starts the thread."""
        self.context_tokens = context_tokens
        self.vocab_size = executor.vocab_size
        self.rows_per_pass = executor.max_rows
        self._executor = executor
        self._sampler = sampler
        self._pool = pool
        self._scheduler = Scheduler(pool, executor.max_rows, max_active)
        self._max_queued = max_queued
        self._totals = Totals()
        self._wake = threading.Condition()
        self._submitted: dict[Request, float] = {}  # live requests and when they came; guarded by _wake
        self._cancelled: set[Request] = set()
        self._in_pass: tuple[Request, ...] = ()
        self._is_draining = False
        self._is_stopping = False
        self._is_alive = True
        self._last_error = ""
        self._n_idle_ticks = 0
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
        n_prompt = len(request.prompt_ids)
        if n_prompt == 0:
            raise InvalidRequest("input", "empty prompt: there is nothing to run")
        if n_prompt >= self.context_tokens:
            raise PromptTooLong(n_prompt, self.context_tokens)
        if request.max_tokens < 1:
            raise InvalidRequest("stop.max_tokens", f"found {request.max_tokens}, wanted at least 1")
        request.max_tokens = min(request.max_tokens, self.context_tokens - n_prompt)
        needed = self._scheduler.worst_case_pages(request)
        if needed > self._pool.n_pages:
            raise OverBudget(
                f"prompt of {n_prompt} and {request.max_tokens} more tokens need {needed} KV pages, "
                f"the budget holds {self._pool.n_pages}"
            )
        with self._wake:
            if not self._is_alive:
                raise EngineFault(f"the engine has stopped: {self._last_error}")
            if self._is_draining:
                raise Draining("the daemon is stopping")
            n_waiting = len(self._scheduler.waiting)
            if n_waiting >= self._max_queued + max(0, self._scheduler.n_free_places):
                raise Overloaded(f"{n_waiting} requests are waiting, the queue holds {self._max_queued}", 1.0)
            self._submitted[request] = time.monotonic()
            request.usage.prompt_tokens = n_prompt
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
            else:
                self._cancelled.add(request)
                if self._in_pass and self._cancelled.issuperset(self._in_pass):
                    self._executor.control.cancel = 1
                self._wake.notify()
        if is_queued:
            self._finish(request, *self._why_unwanted(request))

    def progress(self, request: Request) -> RequestProgress:
        """Where a request stands; a snapshot."""
        with self._wake:
            waiting = self._scheduler.waiting
            position = waiting.index(request) + 1 if request in waiting else 0
        return RequestProgress(
            queue_position=position,
            prompt_tokens_done=min(request.n_computed, len(request.prompt_ids)),
            prompt_tokens=len(request.prompt_ids),
            layer=max(0, self._executor.control.layer) if position == 0 else 0,
            n_layers=self._executor.n_layers,
        )

    def status(self) -> EngineStatus:
        """A snapshot of everything that can be counted."""
        counters = self._executor.counters()
        with self._wake:
            return EngineStatus(
                n_active=len(self._scheduler.active),
                n_queued=len(self._scheduler.waiting),
                max_queued=self._max_queued,
                n_passes=self._totals.n_passes,
                total_rows=self._totals.n_rows,
                plan_bytes=self._executor.streamed_plan_bytes,
                pinned_bytes=self._executor.pinned_bytes,
                streamed_bytes_total=self._totals.streamed_bytes,
                device_bytes_total=counters.device_bytes + self._totals.embedding_device_bytes,
                head_bytes_total=self._totals.head_bytes,
                embedding_bytes_total=self._totals.embedding_bytes,
                read_bytes_per_s=counters.plan_bytes / counters.busy_s if counters.busy_s else 0.0,
                storage_wait_s_total=self._totals.storage_wait_s,
                compute_s_total=self._totals.compute_s,
                storage_idle_s_total=self._totals.storage_idle_s,
                reader_busy_s_total=counters.busy_s,
                kv_bytes_in_use=self._pool.n_in_use * self._pool.page_bytes,
                kv_bytes_granted=self._pool.n_pages * self._pool.page_bytes,
                progress_count=self._executor.control.steps + self._n_idle_ticks,
                is_alive=self._is_alive,
                last_error=self._last_error,
            )

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
            self._wake.notify_all()
        self._thread.join()
        self._executor.close()

    # --- the engine thread ---

    def _run(self) -> None:
        n_failed = 0
        try:
            while self._wait_for_work():
                plan = self._scheduler.plan_pass()
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
            self._drop_unwanted()
            with self._wake:
                if self._is_stopping:
                    return False
                admitted = self._scheduler.admit()
                if not self._scheduler.active:
                    self._n_idle_ticks += 1
                    self._wake.wait(IDLE_TICK_S)
                    continue
            for sequence in admitted:
                request = sequence.request
                request.usage.queue_s = time.monotonic() - self._submitted[request]
                request.sink.started()
            return True

    def _rest(self) -> None:
        """Waits a moment for readers to catch up."""
        with self._wake:
            self._n_idle_ticks += 1
            self._wake.wait(PARKED_TICK_S)

    def _drop_unwanted(self) -> None:
        """Ends sequences and queued requests that were cancelled or whose deadline has passed."""
        now = time.monotonic()
        for sequence in list(self._scheduler.active):
            if sequence.request in self._cancelled or _is_late(sequence.request, now):
                self._end_sequence(sequence, *self._why_unwanted(sequence.request))
            elif not sequence.request.is_reader_behind():
                sequence.parked_since = None
            elif sequence.parked_since is None:
                sequence.parked_since = now
            elif now - sequence.parked_since > MAX_PARKED_S:
                message = f"the reader has been {MAX_PARKED_S:g} s behind"
                self._end_sequence(sequence, FinishReason.CANCELLED, Cancelled(message))
        with self._wake:
            late = [request for request in self._scheduler.waiting if _is_late(request, now)]
            for request in late:
                self._scheduler.waiting.remove(request)
        for request in late:
            self._finish(request, *self._why_unwanted(request))

    @staticmethod
    def _why_unwanted(request: Request) -> tuple[FinishReason, SipdError]:
        if _is_late(request, time.monotonic()):
            return FinishReason.DEADLINE, DeadlineExceeded("the request's deadline has passed")
        return FinishReason.CANCELLED, Cancelled("the client cancelled or went away")

    def _pass(self, plan: PassPlan) -> None:
        """Runs one pass and delivers what it gave."""
        with self._wake:
            self._in_pass = tuple(sequence.request for sequence in plan.sequences)
            if self._cancelled.issuperset(self._in_pass):
                self._in_pass = ()
                return
            # under the lock, so that a cancel for this pass is never wiped out
            self._executor.control.cancel = int(self._is_stopping)
        busy_s = self._executor.counters().busy_s
        try:
            result = self._executor.run(plan.rows, len(plan.sampling), plan.pages, self._is_unwanted)
        finally:
            with self._wake:
                self._in_pass = ()
        self._totals.add(result, len(plan.rows), self._executor.counters().busy_s - busy_s)
        for sequence in plan.sequences:
            usage = sequence.request.usage
            usage.passes += 1
            usage.streamed_bytes += result.streamed_bytes
            usage.head_bytes += result.head_bytes
            usage.embedding_bytes += result.embedding_bytes
            usage.storage_wait_s += result.storage_wait_s
            if not sequence.request.output_ids:
                usage.prefill_passes += 1
        if not result.is_done:
            return
        for sequence in plan.sequences:
            sequence.request.n_computed += sequence.n_rows
        for index, sequence in enumerate(plan.sampling):
            if sequence.request in self._cancelled:
                continue
            try:
                token = self._sampler.draw(sequence.request, self._executor.logits(index))
            except EngineFault as fault:
                self._end_sequence(sequence, FinishReason.ERROR, fault)
                continue
            self._deliver(sequence, token)

    def _is_unwanted(self) -> bool:
        """Whether nobody waits for the pass under way any more; asked while storage is being retried."""
        with self._wake:
            return self._is_stopping or self._cancelled.issuperset(self._in_pass)

    def _deliver(self, sequence: Sequence, token: SampledToken) -> None:
        request = sequence.request
        usage = request.usage
        request.output_ids.append(token.token_id)
        usage.completion_tokens += 1
        if usage.completion_tokens == 1:
            usage.first_token_s = time.monotonic() - self._submitted[request]
        is_end = token.token_id in request.end_ids
        # an end token stands for no text: the sink learns of it by the outcome alone
        is_matched = False if is_end else request.sink.token(token)
        if is_end:
            self._end_sequence(sequence, FinishReason.STOP, end_token_id=token.token_id)
        elif is_matched:
            self._end_sequence(sequence, FinishReason.STOP)
        elif usage.completion_tokens >= request.max_tokens:
            is_full = sequence.n_tokens >= self.context_tokens
            self._end_sequence(sequence, FinishReason.CONTEXT if is_full else FinishReason.LENGTH)

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


def _is_late(request: Request, now: float) -> bool:
    return request.deadline is not None and now >= request.deadline
