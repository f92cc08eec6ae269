"""A small engine and text for tests of the server alone, and a running server around them."""

# ruff: noqa: ANN401 - grpc's channels and calls are untyped

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from sipd.config import Config
from sipd.engine.request import (
    EngineStatus,
    FinishReason,
    Outcome,
    Request,
    RequestProgress,
    SampledToken,
    Usage,
)
from sipd.errors import Cancelled, Draining, InvalidRequest, SipdError
from sipd.memory import Ledger
from sipd.server.events import Events
from sipd.server.journal import RequestJournal
from sipd.server.served_model import QuantShare, ServedModel, WeightsFile
from sipd.server.service import GrpcService, build_service
from sipd.server.service_state import DaemonState, ServiceState
from sipd.text.assembler import TextDelta
from sipd.v1 import generation_pb2 as pb

END_ID = 2
WAIT_S = 10.0


def status(**changes: object) -> EngineStatus:
    """Returns an idle engine's status with `changes`."""
    values: dict[str, object] = dict.fromkeys(EngineStatus.__dataclass_fields__, 0)
    values |= {
        "read_bytes_per_s": 41e6,
        "is_alive": True,
        "last_error": "",
        "probe_rates": (),
        "snapshot_fault": None,
        **changes,
    }
    return EngineStatus(**values)  # type: ignore[arg-type]


@dataclass
class FakeEngine:
    """Replies with `reply` to every request, token by token in a thread, each token waiting for `gate`."""

    reply: Sequence[int] = (65, 66, 67)
    context_tokens: int = 64
    vocab_size: int = 200
    rows_per_pass: int = 512
    isa: str = "portable"
    arithmetic_contract: int = 1
    uses_direct_io: bool = True
    refusal: SipdError | None = None
    error: SipdError | None = None
    first_error: SipdError | None = None
    is_alive: bool = True
    progress_count: int = 0
    position: int = 0  # in the queue, told for every request
    admission: threading.Event = field(default_factory=threading.Event)
    gate: threading.Event = field(default_factory=threading.Event)
    requests: list[Request] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    was_cancelled: threading.Event = field(default_factory=threading.Event)
    figures: dict[str, object] = field(default_factory=dict)  # of the status
    usage: dict[str, int] = field(default_factory=dict)  # of every request, beside what the reply costs
    drained: bool = False
    stopped: bool = False
    threads: list[threading.Thread] = field(default_factory=list)
    on_drain: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        self.gate.set()
        self.admission.set()

    def submit(self, request: Request) -> None:
        if self.drained:
            raise Draining("stopping")
        if self.refusal is not None:
            raise self.refusal
        self.requests.append(request)
        thread = threading.Thread(target=self._run, args=(request,))
        self.threads.append(thread)
        thread.start()

    def cancel(self, request: Request) -> None:
        self.cancelled.append(request.request_id)
        self.was_cancelled.set()

    def progress(self, request: Request) -> RequestProgress:
        return RequestProgress(self.position, 3, len(request.prompt_ids), 7, 30)

    def status(self) -> EngineStatus:
        last_error = "" if self.is_alive else "boom"
        return status(is_alive=self.is_alive, progress_count=self.progress_count, last_error=last_error, **self.figures)

    def drain(self, grace_s: float) -> None:
        self.drained = True
        if self.on_drain is not None:
            self.on_drain()
        for thread in self.threads:
            thread.join(grace_s)
        self.was_cancelled.set()

    def stop(self) -> None:
        self.stopped = True
        self.was_cancelled.set()
        self.admission.set()
        self.gate.set()

    def _run(self, request: Request) -> None:
        usage = Usage(
            prompt_tokens=len(request.prompt_ids), passes=1, streamed_bytes=1000, head_bytes=300, **self.usage
        )
        reason, end_token = FinishReason.LENGTH, None
        self.admission.wait(WAIT_S)
        request.sink.started()
        for token_id in self.reply:
            while not self.gate.wait(0.01):
                if self.was_cancelled.is_set():
                    request.sink.finished(Outcome(FinishReason.CANCELLED, usage, error=Cancelled("cancelled")))
                    return
            usage.completion_tokens += 1
            if token_id in request.end_ids:
                reason, end_token = FinishReason.STOP, token_id
                break
            top = ((token_id, -0.5), (1, -2.0))
            if request.sink.token(SampledToken(token_id, -0.5, top)):
                reason = FinishReason.STOP
                break
            if usage.completion_tokens == request.max_tokens:
                break
        error, self.first_error = self.error or self.first_error, None
        if error is not None:
            request.sink.finished(Outcome(FinishReason.ERROR, usage, error=error))
            return
        request.sink.finished(Outcome(reason, usage, end_token))


class FakeAssembler:
    """Holds back everything while the end could become a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._text = ""
        self._ids: list[int] = []

    def push(self, token_id: int) -> TextDelta:
        self._text += chr(token_id)
        self._ids.append(token_id)
        for stop in self._stops:
            if self._text.endswith(stop):
                return self._take(self._text.removesuffix(stop), stop)
            if any(self._text.endswith(stop[:n]) for n in range(1, len(stop))):
                return TextDelta("", ())
        return self._take(self._text)

    def flush(self) -> TextDelta:
        return self._take(self._text)

    def _take(self, text: str, stop: str | None = None) -> TextDelta:
        piece = TextDelta(text, tuple(self._ids), stop)
        self._text, self._ids = "", []
        return piece


class FakeText:
    """One token per character."""

    end_ids = frozenset({END_ID})
    has_chat_template = True

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        del add_special, parse_special
        return [min(ord(char), 199) for char in text if char != "\x04"]

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        if messages[0][0] == "tool":
            raise InvalidRequest("chat", "the template refuses: no tools")
        text = "".join(role[0] + content for role, content in messages)
        return self.encode(text, add_special=False, parse_special=True)

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def assembler(self, prompt_ids: Sequence[int], stop_strings: Sequence[str], *, include_stop: bool) -> FakeAssembler:
        del prompt_ids, include_stop
        return FakeAssembler(stop_strings)


def served_model(engine: FakeEngine, *, has_text: bool = True, max_prompt_bytes: int = 1 << 20) -> ServedModel:
    """Returns a model around `engine`."""
    return ServedModel(
        name="tiny",
        architecture="llama",
        n_layers=30,
        trained_context_tokens=2048,
        quants=(QuantShare("Q4_1", 210, 66_000_000),),
        files=(WeightsFile("tiny.gguf", 98_000_000, "ab" * 32),),
        engine=engine,
        text=FakeText() if has_text else None,
        max_prompt_bytes=max_prompt_bytes,
    )


@dataclass
class Running:
    """A server that answers on `target`, with all that a test wants to look at."""

    target: str
    state: ServiceState
    engine: FakeEngine
    service: GrpcService
    records: list[dict[str, str]]
    told: list[dict[str, str]]  # events
    outcomes: list[Outcome]

    def generate(self, channel: grpc.aio.Channel, request: pb.GenerateRequest, timeout: float | None = WAIT_S) -> Any:
        method = channel.unary_stream(
            "/sipd.v1.GenerationService/Generate",
            request_serializer=pb.GenerateRequest.SerializeToString,
            response_deserializer=pb.GenerateResponse.FromString,
        )
        return method(request, timeout=timeout)


async def rest(call: Any) -> list[pb.GenerateResponse]:
    """Returns the events that are left of a call whose first ones were read one by one."""
    found = []
    while (event := await call.read()) is not grpc.aio.EOF:
        found.append(event)
    return found


@asynccontextmanager
async def running(
    folder: Path,
    engine: FakeEngine | None = None,
    *,
    has_text: bool = True,
    max_prompt_bytes: int = 1 << 20,
    config: Config | None = None,
    target: str | None = None,
) -> AsyncIterator[tuple[Running, grpc.aio.Channel]]:
    """Runs a server on `target` (default: a Unix socket in `folder`), and yields it with a channel to it."""
    engine = engine or FakeEngine()
    records: list[dict[str, str]] = []
    told: list[dict[str, str]] = []
    outcomes: list[Outcome] = []
    state = ServiceState(config or Config())
    state.served = served_model(engine, has_text=has_text, max_prompt_bytes=max_prompt_bytes)
    state.state = DaemonState.SERVING
    state.ledger = Ledger(512 << 20, 30 << 20, 4 << 20)
    journal = RequestJournal(lambda message, **fields: records.append({"MESSAGE": message, **fields}))
    events = Events(lambda message, **fields: told.append({"MESSAGE": message, **fields}))
    service = await build_service(state, journal, None, outcomes.append, events)
    target = target or f"unix:{folder}/test.sock"
    port = service.server.add_insecure_port(target)
    target = target.removesuffix(":0") + (f":{port}" if target.endswith(":0") else "")
    await service.server.start()
    try:
        async with grpc.aio.insecure_channel(target) as channel:
            yield Running(target, state, engine, service, records, told, outcomes), channel
    finally:
        engine.stop()
        await service.server.stop(0)
        for thread in engine.threads:
            thread.join(WAIT_S)
