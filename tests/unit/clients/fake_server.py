"""A real gRPC server whose answers a test scripts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as Packed
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status

from sipd_client.v1 import generation_pb2 as generation
from sipd_client.v1 import generation_pb2_grpc, model_pb2_grpc, status_pb2_grpc
from sipd_client.v1 import model_pb2 as model
from sipd_client.v1 import status_pb2 as status

WAIT_S = 20.0  # far above what a loaded test machine needs; nothing waits that long when all is well
BEARER = "made-up"

Script = Callable[[generation.GenerateRequest, grpc.ServicerContext], Iterator[generation.GenerateResponse]]


def token(text: str, *ids: int) -> generation.GenerateResponse:
    """Returns a token event."""
    return generation.GenerateResponse(token=generation.Token(text=text, ids=ids))


def accepted(**fields: Any) -> generation.GenerateResponse:  # noqa: ANN401 - as the message wants
    """Returns an accepted event."""
    return generation.GenerateResponse(accepted=generation.Accepted(**fields))


def progress(**fields: int) -> generation.GenerateResponse:
    """Returns a progress event."""
    return generation.GenerateResponse(progress=generation.Progress(**fields))


def finished(**fields: Any) -> generation.GenerateResponse:  # noqa: ANN401 - as the message wants
    """Returns a finished event with reason STOP."""
    return generation.GenerateResponse(finished=generation.Finished(reason=generation.FINISH_REASON_STOP, **fields))


def herbs(
    _request: generation.GenerateRequest, _context: grpc.ServicerContext
) -> Iterator[generation.GenerateResponse]:
    """Yields a short generation with text in several scripts."""
    yield accepted(request_id="r1", prompt_tokens=3)
    yield progress(prompt_tokens=3, n_layers=30)
    yield token(" Grüße", 1, 2)
    yield token(" 🌿\n", 3)
    usage = generation.Usage(
        prompt_tokens=3,
        completion_tokens=4,
        cached_tokens=2,
        restored_tokens=1,
        drafted_tokens=6,
        accepted_tokens=5,
    )
    yield finished(usage=usage, streamed_bytes=2**53 + 1)


def fail(context: grpc.ServicerContext, code: grpc.StatusCode, message: str, *details: Message) -> None:
    """Ends the call with a status and its google.rpc details."""
    packed = []
    for detail in details:
        packed.append(Packed())
        packed[-1].Pack(detail)
    encoded = Status(code=code.value[0], message=message, details=packed).SerializeToString()
    context.set_trailing_metadata((("grpc-status-details-bin", encoded),))
    context.abort(code, message)


@dataclass
class Fake(
    generation_pb2_grpc.GenerationServiceServicer,
    model_pb2_grpc.ModelServiceServicer,
    status_pb2_grpc.StatusServiceServicer,
):
    """The servicer of all three services; `script` plays every generation."""

    script: Script = herbs
    requests: list[Message] = field(default_factory=list)
    metadata: list[dict[str, str | bytes]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    target: str = ""

    def hang(
        self, _request: generation.GenerateRequest, _context: grpc.ServicerContext
    ) -> Iterator[generation.GenerateResponse]:
        """Yields one token, then nothing until the call is over."""
        yield token("first", 1)
        self.release.wait(WAIT_S)

    def Generate(
        self, request: generation.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[generation.GenerateResponse]:
        """Plays the script; `ended` is set when the call is over, however it ended."""
        self._note(request, context)
        if not context.add_callback(self._end):
            self._end()
        return self.script(request, context)

    def GetModel(self, request: model.GetModelRequest, context: grpc.ServicerContext) -> model.GetModelResponse:
        """Returns a model named like the request asks."""
        self._note(request, context)
        if request.model == "absent":
            context.abort(grpc.StatusCode.NOT_FOUND, "absent: not served")
        found = model.Model(name=request.model or "tiny", architecture="llama", n_layers=5)
        return model.GetModelResponse(model=found)

    def ListModels(self, request: model.ListModelsRequest, context: grpc.ServicerContext) -> model.ListModelsResponse:
        """Returns one model."""
        self._note(request, context)
        return model.ListModelsResponse(models=[model.Model(name="tiny")])

    def Tokenize(self, request: model.TokenizeRequest, context: grpc.ServicerContext) -> model.TokenizeResponse:
        """Returns the code points of the text."""
        self._note(request, context)
        return model.TokenizeResponse(ids=map(ord, request.text))

    def Detokenize(self, request: model.DetokenizeRequest, context: grpc.ServicerContext) -> model.DetokenizeResponse:
        """Returns the text of code points."""
        self._note(request, context)
        return model.DetokenizeResponse(text="".join(map(chr, request.ids)))

    def GetStatus(self, request: status.GetStatusRequest, context: grpc.ServicerContext) -> status.GetStatusResponse:
        """Returns a snapshot with a few figures."""
        self._note(request, context)
        return status.GetStatusResponse(
            version="0.1.0",
            state=status.DAEMON_STATE_SERVING,
            model="tiny",
            uptime_s=3720.0,
            memory=status.Memory(
                budget_bytes=2**28,
                ledger=[status.LedgerTerm(name="ring", bytes=2**25)],
                cgroup=status.Cgroup(version=2, max_events=4, high_events=3, oom_events=2, oom_kill_events=1),
                io_pressure=status.Pressure(some_avg10=12.5, full_avg10=2.5),
            ),
            queue=status.Queue(active=1, max_queued=8),
            scheduling=status.Scheduling(
                max_rows_per_pass=512, rows_while_decoding=48, max_active=8, max_requests_per_client=16, clients=2
            ),
            prefix_cache=status.PrefixCache(
                is_on=True, cached_bytes=2**20, cached_tokens=900, restored_tokens=300, sessions=3, max_sessions=16
            ),
            speculation=status.Speculation(is_on=True, drafted_tokens=50, accepted_tokens=40),
        )

    def _note(self, request: Message, context: grpc.ServicerContext) -> None:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))

    def _end(self) -> None:
        self.release.set()
        self.ended.set()


def start(fake: Fake, address: str, credentials: grpc.ServerCredentials | None = None) -> grpc.Server:
    """Serves `fake` at `address` (port 0: a free one) and writes the target into it."""
    server = grpc.server(ThreadPoolExecutor(4))
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(fake, server)
    model_pb2_grpc.add_ModelServiceServicer_to_server(fake, server)
    status_pb2_grpc.add_StatusServiceServicer_to_server(fake, server)
    port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    fake.target = address if address.startswith("unix:") else f"127.0.0.1:{port}"
    server.start()
    return server
