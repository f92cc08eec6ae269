"""The asyncio client; the same calls as the blocking one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self, Unpack

import grpc.aio

from sipd_client.connection import (
    CHANNEL_OPTIONS,
    DEFAULT_TARGET,
    IDLE_TIMEOUT_S,
    UNARY_TIMEOUT_S,
    Tls,
    call_metadata,
    check_target,
)
from sipd_client.errors import IdleTimeout, SipdClientError, error_of
from sipd_client.events import Event, event_of
from sipd_client.requests import GenerateOptions, chat_request, prompt_request, tokenize_request
from sipd_client.v1.generation_pb2 import ChatMessage, Finished, GenerateRequest
from sipd_client.v1.generation_pb2_grpc import GenerationServiceStub
from sipd_client.v1.model_pb2 import DetokenizeRequest, GetModelRequest, ListModelsRequest, Model
from sipd_client.v1.model_pb2_grpc import ModelServiceStub
from sipd_client.v1.status_pb2 import GetStatusRequest, GetStatusResponse
from sipd_client.v1.status_pb2_grpc import StatusServiceStub


class AsyncClient:
    """One connection to a daemon, for one event loop. Failed calls raise SipdClientError."""

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        token: str | None = None,
        tls: Tls | None = None,
        idle_timeout_s: float | None = IDLE_TIMEOUT_S,
    ) -> None:
        """Connects lazily; arguments as for Client. To be made while the event loop runs."""
        check_target(target)
        self._idle_timeout_s = idle_timeout_s
        self._metadata = call_metadata(token)
        if tls is None:
            self._channel = grpc.aio.insecure_channel(target, CHANNEL_OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(target, tls.credentials(), CHANNEL_OPTIONS)
        self._generation = GenerationServiceStub(self._channel)
        self._model = ModelServiceStub(self._channel)
        self._status = StatusServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connection and every call on it."""
        await self._channel.close()

    def generate(
        self, prompt: str | Sequence[int], *, deadline_s: float | None = None, **options: Unpack[GenerateOptions]
    ) -> AsyncGenerator[Event, None]:
        """Yields the events of a continuation of `prompt`, a text or token ids; Finished comes last.

        Closing the generator, or cancelling the task, cancels the request. `deadline_s` limits the whole of it.
        """
        return self._stream(prompt_request(prompt, options), deadline_s)

    def chat(
        self,
        messages: Iterable[ChatMessage | Mapping[str, str] | tuple[str, str]],
        *,
        deadline_s: float | None = None,
        **options: Unpack[GenerateOptions],
    ) -> AsyncGenerator[Event, None]:
        """Yields the events of the reply to a conversation; otherwise like `generate`."""
        return self._stream(chat_request(messages, options), deadline_s)

    async def tokenize(
        self,
        text: str,
        *,
        model: str | None = None,
        parse_special_tokens: bool | None = None,
        add_special_tokens: bool | None = None,
    ) -> list[int]:
        """Returns the token ids of `text`."""
        request = tokenize_request(text, model, parse_special_tokens, add_special_tokens)
        with _errors():
            response = await self._model.Tokenize(request, timeout=UNARY_TIMEOUT_S, metadata=self._metadata)
            return list(response.ids)

    async def detokenize(self, ids: Sequence[int], *, model: str | None = None) -> str:
        """Returns the text of token ids."""
        with _errors():
            response = await self._model.Detokenize(
                DetokenizeRequest(ids=ids, model=model), timeout=UNARY_TIMEOUT_S, metadata=self._metadata
            )
            return str(response.text)

    async def model(self, name: str | None = None) -> Model:
        """Returns what the daemon tells about a model (None: the one that is served)."""
        with _errors():
            response = await self._model.GetModel(
                GetModelRequest(model=name), timeout=UNARY_TIMEOUT_S, metadata=self._metadata
            )
            found: Model = response.model
            return found

    async def models(self) -> list[Model]:
        """Returns every model that is served."""
        with _errors():
            response = await self._model.ListModels(
                ListModelsRequest(), timeout=UNARY_TIMEOUT_S, metadata=self._metadata
            )
            return list(response.models)

    async def status(self) -> GetStatusResponse:
        """Returns a snapshot of the daemon."""
        with _errors():
            found: GetStatusResponse = await self._status.GetStatus(
                GetStatusRequest(), timeout=UNARY_TIMEOUT_S, metadata=self._metadata
            )
            return found

    async def _stream(self, request: GenerateRequest, deadline_s: float | None) -> AsyncGenerator[Event, None]:
        call = self._generation.Generate(request, timeout=deadline_s, metadata=self._metadata)
        finished: Finished | None = None
        try:
            while True:
                with _errors(self._idle_timeout_s):
                    async with asyncio.timeout(self._idle_timeout_s):
                        response = await call.read()
                if response is grpc.aio.EOF:
                    break
                event = event_of(response)
                if isinstance(event, Finished):
                    finished = event  # yielded after the status, so that a caller who stops here cancels nothing
                elif event is not None:
                    yield event
            if finished is None:
                raise SipdClientError("INTERNAL", "the stream ended without a finished event", reason="NOT_FINISHED")
            yield finished
        finally:
            call.cancel()


@contextmanager
def _errors(idle_timeout_s: float | None = None) -> Iterator[None]:
    """Turns gRPC's errors into ours, and a timeout within into IdleTimeout."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise error_of(error.code().name, error.details(), error.trailing_metadata()) from error
    except TimeoutError as error:
        raise IdleTimeout(idle_timeout_s or 0.0) from error
