"""GenerationService: one call is one request to the engine, told as accepted, progress, token and finished events.

Invariant: whatever ends a call (last token, error, cancel, deadline, disconnect), the engine is told at once and
exactly one journal record is written, but for a flood of refusals (journal.MOST_REFUSED).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import grpc

from sipd.cgroup import find_memory_cgroup
from sipd.engine.request import FinishReason, Outcome, Request, Usage
from sipd.errors import DeadlineExceeded, Draining, Overloaded, SipdError
from sipd.process_memory import read_process_memory
from sipd.server.call_events import Call, RequestLabel
from sipd.server.client_identity import ClientIdentity, identify_client
from sipd.server.journal import REFUSED, RequestJournal, RequestRecord, cgroup_figures
from sipd.server.options import read_request_id, read_sampling, read_serving, read_stop
from sipd.server.refusals import Refusals
from sipd.server.service_state import DaemonState, ServiceState
from sipd.server.sink import Ending, RequestSink
from sipd.v1 import generation_pb2 as pb

PROGRESS_INTERVAL_S = 2.0  # proxies and people take silence of a few seconds for a hang
_RETRY_AFTER_S = 1.0
_DEADLINE_SLACK_S = 0.1  # transport and engine see the same deadline at slightly different moments


class GenerationService:
    """Serves Generate; owned by the event loop's thread."""

    def __init__(
        self,
        state: ServiceState,
        journal: RequestJournal,
        refusals: Refusals,
        on_outcome: Callable[[Outcome], None],
        progress_interval_s: float = PROGRESS_INTERVAL_S,
    ) -> None:
        self._state = state
        self._journal = journal
        self._refusals = refusals
        self._on_outcome = on_outcome
        self._progress_interval_s = progress_interval_s
        self._n_preparing = 0
        self._queued: set[Call] = set()
        self._cgroup = find_memory_cgroup()

    async def generate(
        self, message: pb.GenerateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Yields the events of one request; raises SipdError for everything that is refused or fails."""
        remaining_s = context.time_remaining()
        deadline = None if remaining_s is None else time.monotonic() + remaining_s
        client = identify_client(context)
        with ExitStack() as place:
            call = await self._prepare(message, deadline, client, place)
            engine = call.served.engine
            try:
                engine.submit(call.request)
            except SipdError as error:
                self._record_refusal(call.label, error, len(call.request.prompt_ids))
                raise
            self._queued.add(call)
            try:
                self._tell_places()
                yield call.accepted()
                async for event in self._events(call):
                    yield event
            finally:
                self._queued.discard(call)
                engine.cancel(call.request)

    async def _events(self, call: Call) -> AsyncIterator[pb.GenerateResponse]:
        """Yields progress in silence and when the place in the queue changes, tokens, and finished.

        Raises the error of a request that did not end well.
        """
        loop = asyncio.get_running_loop()
        silent_until = loop.time() + self._progress_interval_s
        while True:
            try:
                async with asyncio.timeout_at(silent_until):
                    event = await call.sink.next_event()
            except TimeoutError:
                event = None
            if event is None and loop.time() < silent_until and call.queue_position() == call.told_position:
                continue
            silent_until = loop.time() + self._progress_interval_s
            if event is None:
                yield call.progress()
                continue
            if isinstance(event, Ending):
                if event.outcome.reason is FinishReason.CANCELLED and self._state.state is DaemonState.DRAINING:
                    raise Draining("the daemon stopped before the request was complete")
                yield call.finished(event)
                return
            yield pb.GenerateResponse(token=event)

    async def _prepare(
        self, message: pb.GenerateRequest, deadline: float | None, client: ClientIdentity, place: ExitStack
    ) -> Call:
        """Returns the checked request, not yet submitted; refusals get their journal record here.

        `place` holds the client's place from here on.
        """
        config = self._state.config
        limit = config.max_requests + config.max_queued
        label = RequestLabel(client.name)
        self._n_preparing += 1
        try:
            label = replace(label, request_id=read_request_id(message))
            place.enter_context(self._state.places.hold(client, config.max_requests_per_client))
            served = self._state.require_served(message.model if message.HasField("model") else None)
            self._state.require_memory()
            if self._n_preparing > limit:  # the engine's queue would refuse them anyway, after the tokenising
                raise Overloaded(f"{self._n_preparing} requests arrive at once, wanted {limit}", _RETRY_AFTER_S)
            serving = read_serving(message, config)
            label = replace(label, priority=serving.priority.name.lower(), session=serving.session)
            sampling = read_sampling(message.sampling, served.engine.vocab_size)
            stop = read_stop(message.stop, served.engine.vocab_size)
            prompt_ids = await self._state.prompt_reader().read(message)
        except SipdError as error:
            self._record_refusal(label, error)
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
            lambda: self._start(call),
            lambda outcome: self._finish(call, outcome),
            has_logprobs=sampling.logprobs is not None,
        )
        request = Request(
            request_id=label.request_id,
            prompt_ids=prompt_ids,
            max_tokens=min(stop.max_tokens, served.engine.context_tokens - len(prompt_ids)),
            sampling=sampling,
            sink=sink,
            is_reader_behind=sink.is_reader_behind,
            end_ids=end_ids | stop.token_ids,
            deadline=deadline,
            client=client.name,
            owner=client.session_owner,
            priority=serving.priority,
            session=f"{client.session_owner}/{serving.session}" if serving.session else "",
            uses_prefix_cache=serving.uses_prefix_cache,
            speculates=serving.speculates,
        )
        call = Call(served, request, stop, label)
        return call

    def _start(self, call: Call) -> None:
        """Takes an admitted request out of the queue as its readers see it."""
        self._tell_places()
        self._queued.discard(call)

    def _tell_places(self) -> None:
        """Has every request that waits look at its place in the queue."""
        for call in self._queued:
            call.sink.nudge()

    def _finish(self, call: Call, outcome: Outcome) -> None:
        """Writes the record of a request that ran, whether or not its client is still there."""
        reason = outcome.reason
        error = "" if outcome.error is None else outcome.error.reason
        if reason is FinishReason.CANCELLED and _has_passed(call.request.deadline):
            reason, error = FinishReason.DEADLINE, DeadlineExceeded.reason  # gRPC, which cancelled, saw it pass first
        if reason is FinishReason.CANCELLED and self._state.state is DaemonState.DRAINING:
            error = Draining.reason  # what its client was told
        self._write_record(call.label, reason.value, error, outcome.usage)
        self._tell_places()
        self._on_outcome(outcome)

    def _record_refusal(self, label: RequestLabel, error: SipdError, prompt_tokens: int = 0) -> None:
        self._write_record(label, REFUSED, error.reason, Usage(prompt_tokens=prompt_tokens))
        self._refusals.note(label.request_id, error)

    def _write_record(self, label: RequestLabel, finish_reason: str, error: str, usage: Usage) -> None:
        current, peak = cgroup_figures(self._cgroup)
        served, ledger = self._state.served, self._state.ledger
        memory = read_process_memory()
        self._journal.write(
            RequestRecord(
                request_id=label.request_id,
                model="" if served is None else served.name,
                finish_reason=finish_reason,
                usage=usage,
                memory=memory,
                anonymous_peak=memory.rss_anon if ledger is None else ledger.sample_peak(),
                cgroup_current=current,
                cgroup_peak=peak,
                error=error,
                client=label.client,
                priority=label.priority,
                session=label.session,
            )
        )


def _has_passed(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline - _DEADLINE_SLACK_S
