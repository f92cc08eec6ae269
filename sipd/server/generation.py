"""GenerationService: one call is one request to the engine, told as accepted, progress, token and finished events.

Invariant: whatever ends a call (last token, error, cancel, deadline, disconnect), the engine is told at once and
exactly one journal record is written.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from sipd.cgroup import find_memory_cgroup
from sipd.engine.request import FinishReason, Outcome, Request, Usage
from sipd.errors import Cancelled, DeadlineExceeded, Draining, EngineFault, Overloaded, SipdError
from sipd.process_memory import read_process_memory
from sipd.server.journal import RequestJournal, RequestRecord, cgroup_figures
from sipd.server.options import StopOptions, read_request_id, read_sampling, read_stop, write_sampling
from sipd.server.served_model import ServedModel
from sipd.server.service_state import DaemonState, ServiceState
from sipd.server.sink import Ending, RequestSink
from sipd.v1 import generation_pb2 as pb

PROGRESS_INTERVAL_S = 2.0  # proxies and people take silence of a few seconds for a hang
_RETRY_AFTER_S = 1.0
_DEADLINE_SLACK_S = 0.1  # transport and engine see the same deadline at slightly different moments
_REASONS = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.CONTEXT: pb.FINISH_REASON_CONTEXT,
}


class GenerationService:
    """Serves Generate; owned by the event loop's thread."""

    def __init__(
        self,
        state: ServiceState,
        journal: RequestJournal,
        on_outcome: Callable[[Outcome], None],
        progress_interval_s: float = PROGRESS_INTERVAL_S,
    ) -> None:
        self._state = state
        self._journal = journal
        self._on_outcome = on_outcome
        self._progress_interval_s = progress_interval_s
        self._n_preparing = 0
        self._cgroup = find_memory_cgroup()

    async def generate(
        self, message: pb.GenerateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Yields the events of one request; raises SipdError for everything that is refused or fails."""
        remaining_s = context.time_remaining()
        deadline = None if remaining_s is None else time.monotonic() + remaining_s
        call = await self._prepare(message, deadline)
        engine = call.served.engine
        try:
            engine.submit(call.request)
        except SipdError as error:
            self._record_refusal(call.request.request_id, error, len(call.request.prompt_ids))
            raise
        try:
            yield call.accepted(engine.progress(call.request).queue_position)
            async for event in self._events(call):
                yield event
        finally:
            engine.cancel(call.request)

    async def _events(self, call: _Call) -> AsyncIterator[pb.GenerateResponse]:
        """Yields progress while nothing happens, tokens as they come, and finished; raises the outcome's error."""
        while True:
            try:
                async with asyncio.timeout(self._progress_interval_s):
                    event = await call.sink.next_event()
            except TimeoutError:
                yield call.progress()
                continue
            if isinstance(event, Ending):
                if event.outcome.reason is FinishReason.CANCELLED and self._state.state is DaemonState.DRAINING:
                    raise Draining("the daemon stopped before the request was complete")
                yield call.finished(event)
                return
            yield pb.GenerateResponse(token=event)

    async def _prepare(self, message: pb.GenerateRequest, deadline: float | None) -> _Call:
        """Returns the checked request, not yet submitted; refusals get their journal record here."""
        limit = self._state.config.max_requests + self._state.config.max_queued
        request_id = ""
        self._n_preparing += 1
        try:
            request_id = read_request_id(message)
            served = self._state.require_served(message.model if message.HasField("model") else None)
            if self._n_preparing > limit:  # the engine's queue would refuse them anyway, after the tokenising
                raise Overloaded(f"{self._n_preparing} requests arrive at once, wanted {limit}", _RETRY_AFTER_S)
            sampling = read_sampling(message.sampling, served.engine.vocab_size)
            stop = read_stop(message.stop, served.engine.vocab_size)
            prompt_ids = await self._state.prompt_reader().read(message)
        except SipdError as error:
            self._record_refusal(request_id, error)
            raise
        finally:
            self._n_preparing -= 1
        end_ids = frozenset() if stop.ignores_end_tokens or served.text is None else served.text.end_ids
        assembler = (
            None
            if served.text is None
            else served.text.assembler(prompt_ids, stop.strings, include_stop=stop.includes_stop)
        )
        sink = RequestSink(
            assembler,
            end_ids | stop.token_ids,
            lambda outcome: self._finish(request, outcome),
            has_logprobs=sampling.logprobs is not None,
        )
        request = Request(
            request_id=request_id,
            prompt_ids=prompt_ids,
            max_tokens=min(stop.max_tokens, served.engine.context_tokens - len(prompt_ids)),
            sampling=sampling,
            sink=sink,
            is_reader_behind=sink.is_reader_behind,
            end_ids=end_ids | stop.token_ids,
            deadline=deadline,
        )
        return _Call(served, request, stop)

    def _finish(self, request: Request, outcome: Outcome) -> None:
        """Writes the record of a request that ran, whether or not its client is still there."""
        reason = outcome.reason
        if reason is FinishReason.CANCELLED and _has_passed(request.deadline):
            reason = FinishReason.DEADLINE  # gRPC cancelled the call because its deadline passed
        error = "" if outcome.error is None or reason is not outcome.reason else outcome.error.reason
        if reason is FinishReason.CANCELLED and self._state.state is DaemonState.DRAINING:
            error = Draining.reason  # what its client was told
        self._write_record(request.request_id, reason.value, error, outcome.usage)
        self._on_outcome(outcome)

    def _record_refusal(self, request_id: str, error: SipdError, prompt_tokens: int = 0) -> None:
        self._write_record(request_id, "refused", error.reason, Usage(prompt_tokens=prompt_tokens))

    def _write_record(self, request_id: str, finish_reason: str, error: str, usage: Usage) -> None:
        current, peak = cgroup_figures(self._cgroup)
        served, ledger = self._state.served, self._state.ledger
        memory = read_process_memory()
        self._journal.write(
            RequestRecord(
                request_id=request_id,
                model="" if served is None else served.name,
                finish_reason=finish_reason,
                usage=usage,
                memory=memory,
                anonymous_peak=memory.rss_anon if ledger is None else ledger.sample_peak(),
                cgroup_current=current,
                cgroup_peak=peak,
                error=error,
            )
        )


class _Call:
    """One request with what its events need."""

    def __init__(self, served: ServedModel, request: Request, stop: StopOptions) -> None:
        self.served = served
        self.request = request
        self.stop = stop
        assert isinstance(request.sink, RequestSink)
        self.sink: RequestSink = request.sink

    def accepted(self, queue_position: int) -> pb.GenerateResponse:
        """Returns the first event."""
        return pb.GenerateResponse(
            accepted=pb.Accepted(
                request_id=self.request.request_id,
                queue_position=queue_position,
                prompt_tokens=len(self.request.prompt_ids),
                sampling=write_sampling(self.request.sampling),
                max_tokens=self.request.max_tokens,
                context_tokens=self.served.engine.context_tokens,
                model=self.served.name,
            )
        )

    def progress(self) -> pb.GenerateResponse:
        """Returns where the request stands."""
        now = self.served.engine.progress(self.request)
        return pb.GenerateResponse(
            progress=pb.Progress(
                queue_position=now.queue_position,
                prompt_tokens_done=now.prompt_tokens_done,
                prompt_tokens=now.prompt_tokens,
                layer=now.layer,
                n_layers=now.n_layers,
            )
        )

    def finished(self, ending: Ending) -> pb.GenerateResponse:
        """Returns the last event; raises the error of a request that did not end well."""
        outcome = ending.outcome
        if outcome.error is not None:
            raise outcome.error
        if outcome.reason not in _REASONS:
            raise _missing_error(outcome.reason)
        usage, memory = outcome.usage, read_process_memory()
        is_bound_by_context = outcome.reason is FinishReason.LENGTH and self.request.max_tokens < self.stop.max_tokens
        event = pb.Finished(
            reason=pb.FINISH_REASON_CONTEXT if is_bound_by_context else _REASONS[outcome.reason],
            usage=pb.Usage(
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                cached_tokens=usage.cached_tokens,
            ),
            streamed_bytes=usage.streamed_bytes,
            head_bytes=usage.head_bytes,
            embedding_bytes=usage.embedding_bytes,
            passes=usage.passes,
            prefill_passes=usage.prefill_passes,
            kv_bytes=usage.kv_bytes,
            timings=pb.Timings(
                queue_s=usage.queue_s,
                first_token_s=usage.first_token_s,
                total_s=usage.total_s,
                storage_wait_s=usage.storage_wait_s,
            ),
            rss_anon_bytes=memory.rss_anon,
            rss_file_bytes=memory.rss_file,
            rss_peak_bytes=memory.rss_peak,
        )
        if ending.stop_string is not None:
            event.stop_string = ending.stop_string
        elif outcome.end_token_id is not None:
            event.stop_token_id = outcome.end_token_id
        return pb.GenerateResponse(finished=event)


def _missing_error(reason: FinishReason) -> SipdError:
    if reason is FinishReason.CANCELLED:
        return Cancelled("the request was cancelled")
    if reason is FinishReason.DEADLINE:
        return DeadlineExceeded("the request's deadline passed")
    return EngineFault("a pass failed")


def _has_passed(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline - _DEADLINE_SLACK_S
