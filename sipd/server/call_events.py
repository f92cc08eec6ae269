"""One accepted request as the events of the contract: accepted, progress, finished.

Owned by the event loop's thread. Invariant: a request that did not end well has no finished event, only its error.
"""

from __future__ import annotations

from dataclasses import dataclass

from sipd.engine.request import FinishReason, Request
from sipd.errors import Cancelled, DeadlineExceeded, EngineFault, SipdError
from sipd.process_memory import read_process_memory
from sipd.server.options import StopOptions, write_priority, write_sampling
from sipd.server.served_model import ServedModel
from sipd.server.sink import Ending, RequestSink
from sipd.v1 import generation_pb2 as pb

_REASONS = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.CONTEXT: pb.FINISH_REASON_CONTEXT,
}


@dataclass(frozen=True, slots=True)
class RequestLabel:
    """How a request is told apart in events and journal; what a refused one did not come to tell is empty."""

    client: str
    request_id: str = ""
    priority: str = ""
    session: str = ""


class Call:
    """One request with what its events need."""

    def __init__(self, served: ServedModel, request: Request, stop: StopOptions, label: RequestLabel) -> None:
        self.served = served
        self.request = request
        self.stop = stop
        self.label = label
        assert isinstance(request.sink, RequestSink)
        self.sink: RequestSink = request.sink
        self.told_position = 0  # in the queue, by the last event that told one

    def accepted(self) -> pb.GenerateResponse:
        """Returns the first event."""
        self.told_position = self.queue_position()
        return pb.GenerateResponse(
            accepted=pb.Accepted(
                request_id=self.request.request_id,
                queue_position=self.told_position,
                prompt_tokens=len(self.request.prompt_ids),
                sampling=write_sampling(self.request.sampling),
                max_tokens=self.request.max_tokens,
                context_tokens=self.served.engine.context_tokens,
                model=self.served.name,
                priority=write_priority(self.request.priority),
                session=self.label.session,
            )
        )

    def queue_position(self) -> int:
        """Returns the request's place in the queue now; 0: admitted."""
        position: int = self.served.engine.progress(self.request).queue_position
        return position

    def progress(self) -> pb.GenerateResponse:
        """Returns where the request stands."""
        now = self.served.engine.progress(self.request)
        self.told_position = now.queue_position
        return pb.GenerateResponse(
            progress=pb.Progress(
                queue_position=now.queue_position,
                prompt_tokens_done=now.prompt_tokens_done,
                prompt_tokens=now.prompt_tokens,
                layer=now.layer,
                n_layers=now.n_layers,
                cached_tokens=self.request.usage.cached_tokens,
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
                restored_tokens=usage.restored_tokens,
                drafted_tokens=usage.drafted_tokens,
                accepted_tokens=usage.accepted_tokens,
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
