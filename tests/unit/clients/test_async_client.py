"""The asyncio client against a scripted server."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import ErrorInfo

from sipd_client import AsyncClient, Finished, IdleTimeout, SipdClientError, Token
from sipd_client.v1.generation_pb2 import GenerateRequest, GenerateResponse
from tests.unit.clients.fake_server import BEARER, WAIT_S, Fake, fail, finished, token


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, WAIT_S))


def test_text_arrives_unchanged(fake: Fake) -> None:
    async def work() -> None:
        async with AsyncClient(fake.target) as client:
            events = [event async for event in client.chat([("user", "hi")])]
        assert "".join(event.text for event in events if isinstance(event, Token)) == " Grüße 🌿\n"
        assert isinstance(events[-1], Finished)

    run(work())


def test_closing_the_generator_cancels_the_call(fake: Fake) -> None:
    fake.script = fake.hang

    async def work() -> None:
        async with AsyncClient(fake.target) as client:
            events = client.generate("hi")
            await anext(events)
            await events.aclose()
            assert await asyncio.to_thread(fake.ended.wait, WAIT_S)

    run(work())


def test_cancelling_the_task_cancels_the_call(fake: Fake) -> None:
    fake.script = fake.hang

    async def work() -> None:
        async with AsyncClient(fake.target) as client:
            seen = asyncio.Event()

            async def read() -> None:
                async for _ in client.generate("hi"):
                    seen.set()

            task = asyncio.create_task(read())
            await seen.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(fake.ended.wait, WAIT_S)

    run(work())


def test_silence_beyond_the_idle_timeout_cancels_the_call(fake: Fake) -> None:
    fake.script = fake.hang

    async def work() -> None:
        async with AsyncClient(fake.target, idle_timeout_s=0.3) as client:
            events = client.generate("hi")
            await anext(events)
            with pytest.raises(IdleTimeout):
                await anext(events)
            assert await asyncio.to_thread(fake.ended.wait, WAIT_S)

    run(work())


def test_a_deadline_limits_the_whole(fake: Fake) -> None:
    fake.script = fake.hang

    async def work() -> None:
        async with AsyncClient(fake.target) as client:
            with pytest.raises(SipdClientError, match="DEADLINE_EXCEEDED -"):
                _ = [event async for event in client.generate("hi", deadline_s=0.3)]

    run(work())


def test_error_details_are_decoded(fake: Fake) -> None:
    def script(_request: GenerateRequest, context: grpc.ServicerContext) -> Iterator[GenerateResponse]:
        fail(context, grpc.StatusCode.UNAVAILABLE, "the daemon is stopping", ErrorInfo(reason="DRAINING"))
        yield token("never")

    fake.script = script

    async def work() -> None:
        async with AsyncClient(fake.target) as client:
            with pytest.raises(SipdClientError, match="UNAVAILABLE DRAINING: the daemon is stopping"):
                _ = [event async for event in client.generate("hi")]

    run(work())


def test_a_stream_without_finished_is_an_error(fake: Fake) -> None:
    fake.script = lambda _request, _context: iter([token("half")])

    async def work() -> None:
        async with AsyncClient(fake.target) as client:
            with pytest.raises(SipdClientError, match="NOT_FINISHED"):
                _ = [event async for event in client.generate("hi")]

    run(work())


def test_several_generations_share_one_connection(fake: Fake) -> None:
    fake.script = lambda request, _context: iter([token(request.prompt), finished()])

    async def work() -> None:
        async with AsyncClient(fake.target) as client:

            async def text(prompt: str) -> str:
                return "".join([event.text async for event in client.generate(prompt) if isinstance(event, Token)])

            assert await asyncio.gather(*map(text, "abc")) == ["a", "b", "c"]

    run(work())


def test_model_status_and_tokens_are_told(fake: Fake) -> None:
    async def work() -> None:
        async with AsyncClient(fake.target, token=BEARER) as client:
            assert (await client.model()).name == "tiny"
            assert [found.name for found in await client.models()] == ["tiny"]
            assert (await client.status()).version == "0.1.0"
            assert await client.detokenize(await client.tokenize("é🌿")) == "é🌿"
        assert {metadata["authorization"] for metadata in fake.metadata} == {f"Bearer {BEARER}"}

    run(work())
