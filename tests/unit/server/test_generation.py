"""GenerationService over a real socket, with a fake engine."""

# ruff: noqa: ANN401 - grpc's channels and calls are untyped

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from sipd.errors import DataLoss, EngineFault, OverBudget, Overloaded, PromptTooLong, SipdError, StorageFault
from sipd.memory import MemoryLimit
from sipd.server.service_state import DaemonState
from sipd.v1 import generation_pb2 as pb
from tests.unit.server.fakes import END_ID, WAIT_S, FakeEngine, Running, running

# Asks for a reply without a deadline, and says when the first event is there.
CLIENT = """
import grpc, sys
from sipd.v1 import generation_pb2 as pb
channel = grpc.insecure_channel(sys.argv[1])
generate = channel.unary_stream(
    "/sipd.v1.GenerationService/Generate", pb.GenerateRequest.SerializeToString, pb.GenerateResponse.FromString
)
for _ in generate(pb.GenerateRequest(prompt="hello")):
    print("started", flush=True)
"""

Body = Callable[[Running, grpc.aio.Channel], Awaitable[Any]]


def run(folder: Path, body: Body, engine: FakeEngine | None = None, **options: Any) -> Any:
    async def main() -> Any:
        async with asyncio.timeout(4 * WAIT_S), running(folder, engine, **options) as (server, channel):
            return await body(server, channel)

    return asyncio.run(main())


def events(folder: Path, request: pb.GenerateRequest, engine: FakeEngine | None = None, **options: Any) -> list[Any]:
    async def body(server: Running, channel: grpc.aio.Channel) -> list[Any]:
        return [event async for event in server.generate(channel, request)]

    found: list[Any] = run(folder, body, engine, **options)
    return found


def failure(
    folder: Path, request: pb.GenerateRequest, engine: FakeEngine | None = None, **options: Any
) -> tuple[grpc.StatusCode, str, error_details_pb2.ErrorInfo, list[Any]]:
    """Returns code, message, ErrorInfo and the other details of a call that must fail."""

    async def body(server: Running, channel: grpc.aio.Channel) -> grpc.aio.AioRpcError:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in server.generate(channel, request):
                pass
        return caught.value

    error = run(folder, body, engine, **options)
    encoded = dict(list(error.trailing_metadata()))["grpc-status-details-bin"]
    details = status_pb2.Status.FromString(encoded).details
    info = error_details_pb2.ErrorInfo()
    assert details[0].Unpack(info)
    assert info.domain == "sipd"
    return error.code(), error.details(), info, list(details[1:])


def text_of(found: list[Any]) -> str:
    return "".join(event.token.text for event in found)


def prompt(text: str = "hello", **changes: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(prompt=text, **changes)


def test_events_come_as_accepted_then_tokens_then_finished(tmp_path: Path) -> None:
    found = events(tmp_path, prompt())
    assert [event.WhichOneof("event") for event in found] == ["accepted", "token", "token", "token", "finished"]
    assert text_of(found) == "ABC"


def test_accepted_echoes_the_request_as_it_was_taken(tmp_path: Path) -> None:
    accepted = events(tmp_path, prompt(request_id="mine:1", sampling=pb.Sampling(temperature=0.8, seed=0)))[0].accepted
    assert (accepted.request_id, accepted.prompt_tokens, accepted.model) == ("mine:1", 5, "tiny")
    assert accepted.sampling.seed == 0
    assert accepted.sampling.HasField("seed")
    assert accepted.sampling.top_p == 1.0
    assert accepted.context_tokens == 64


def test_a_seed_is_drawn_when_none_is_given(tmp_path: Path) -> None:
    seeds = {events(tmp_path, prompt())[0].accepted.sampling.seed for _ in range(3)}
    assert len(seeds) == 3


def test_max_tokens_is_bounded_by_the_context_and_the_reason_says_so(tmp_path: Path) -> None:
    engine = FakeEngine(reply=[65] * 100, context_tokens=8)
    found = events(tmp_path, prompt(), engine)
    assert found[0].accepted.max_tokens == 3
    assert text_of(found) == "AAA"
    assert found[-1].finished.reason == pb.FINISH_REASON_CONTEXT


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_exactly_max_tokens_are_generated(tmp_path: Path, max_tokens: int) -> None:
    found = events(tmp_path, prompt(stop=pb.Stop(max_tokens=max_tokens)), FakeEngine(reply=[65] * 100))
    assert text_of(found) == "A" * max_tokens
    assert found[-1].finished.reason == pb.FINISH_REASON_LENGTH
    assert found[-1].finished.usage.completion_tokens == max_tokens


def test_zero_max_tokens_is_refused_by_name(tmp_path: Path) -> None:
    code, message, _, _ = failure(tmp_path, prompt(stop=pb.Stop(max_tokens=0)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "stop.max_tokens" in message


def test_an_end_token_ends_the_request_and_is_told_apart_from_text(tmp_path: Path) -> None:
    found = events(tmp_path, prompt(), FakeEngine(reply=[65, END_ID, 66]))
    assert text_of(found) == "A"
    assert [list(event.token.ids) for event in found[1:-1]] == [[65]]
    assert found[-1].finished.reason == pb.FINISH_REASON_STOP
    assert found[-1].finished.stop_token_id == END_ID


def test_end_tokens_can_be_ignored(tmp_path: Path) -> None:
    request = prompt(stop=pb.Stop(ignore_end_tokens=True))
    assert text_of(events(tmp_path, request, FakeEngine(reply=[65, END_ID, 66]))) == "A\x02B"


def test_a_stop_string_over_token_borders_is_held_back_and_reported(tmp_path: Path) -> None:
    request = prompt(stop=pb.Stop(strings=["BC"]))
    found = events(tmp_path, request, FakeEngine(reply=[65, 66, 67, 68]))
    assert text_of(found) == "A"
    assert [token_id for event in found for token_id in event.token.ids] == [65, 66, 67]
    assert found[-1].finished.stop_string == "BC"


def test_text_held_back_is_flushed_at_the_end(tmp_path: Path) -> None:
    request = prompt(stop=pb.Stop(strings=["BX"]))
    assert text_of(events(tmp_path, request, FakeEngine(reply=[65, 66]))) == "AB"


def test_logprobs_come_one_per_id(tmp_path: Path) -> None:
    token = events(tmp_path, prompt(sampling=pb.Sampling(logprobs=2)))[1].token
    assert [(each.id, each.logprob) for each in token.logprobs] == [(65, -0.5)]
    assert [each.id for each in token.logprobs[0].top] == [65, 1]


def test_finished_tells_usage_and_bytes(tmp_path: Path) -> None:
    finished = events(tmp_path, prompt())[-1].finished
    assert (finished.usage.prompt_tokens, finished.usage.completion_tokens) == (5, 3)
    assert (finished.streamed_bytes, finished.head_bytes, finished.passes) == (1000, 300, 1)
    assert finished.rss_anon_bytes > 0


def test_without_a_tokenizer_token_ids_still_work(tmp_path: Path) -> None:
    request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1, 5]))
    found = events(tmp_path, request, has_text=False)
    assert [list(event.token.ids) for event in found[1:-1]] == [[65], [66], [67]]


def test_without_a_tokenizer_text_is_refused(tmp_path: Path) -> None:
    code, message, _, _ = failure(tmp_path, prompt(), has_text=False)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "tokenizer files" in message


@pytest.mark.parametrize(
    "request_message",
    [
        prompt(""),
        prompt("\x04"),
        pb.GenerateRequest(chat=pb.ChatInput()),
        pb.GenerateRequest(token_ids=pb.TokenIds()),
    ],
    ids=["empty text", "text without tokens", "no messages", "no ids"],
)
def test_an_empty_prompt_is_refused(tmp_path: Path, request_message: pb.GenerateRequest) -> None:
    code, message, info, _ = failure(tmp_path, request_message)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "empty prompt" in message
    assert info.reason == "INVALID_FIELD"


def test_no_input_is_refused(tmp_path: Path) -> None:
    code, message, _, _ = failure(tmp_path, pb.GenerateRequest())
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "prompt, token_ids, chat" in message


def test_a_prompt_that_leaves_no_room_is_refused_with_both_numbers(tmp_path: Path) -> None:
    code, _, info, _ = failure(tmp_path, prompt("x" * 64))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert (info.reason, dict(info.metadata)) == (
        "PROMPT_TOO_LONG",
        {"prompt_tokens": "64", "context_tokens": "64"},
    )


def test_a_prompt_of_context_minus_one_is_taken(tmp_path: Path) -> None:
    assert events(tmp_path, prompt("x" * 63))[0].accepted.max_tokens == 1


def test_a_five_megabyte_prompt_gets_our_own_refusal(tmp_path: Path) -> None:
    code, message, info, _ = failure(tmp_path, prompt("x" * 5_000_000))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "bytes, wanted at most" in message
    assert info.reason == "INVALID_FIELD"


def test_a_prompt_above_the_byte_limit_is_refused_before_tokenising(tmp_path: Path) -> None:
    _, message, _, _ = failure(tmp_path, prompt("é" * 6), max_prompt_bytes=10)
    assert message == "prompt: has 12 bytes, wanted at most 10"


def test_a_token_id_outside_the_vocabulary_is_refused_with_its_position(tmp_path: Path) -> None:
    _, message, _, _ = failure(tmp_path, pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1, 200])))
    assert "id 200 at position 1" in message


@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        ({"temperature": float("nan")}, "sampling.temperature"),
        ({"temperature": float("inf")}, "sampling.temperature"),
        ({"temperature": -1.0}, "sampling.temperature"),
        ({"top_p": 0.0}, "sampling.top_p"),
        ({"top_p": 2.0}, "sampling.top_p"),
        ({"top_k": -5}, "sampling.top_k"),
        ({"repetition_penalty": 0.0}, "sampling.repetition_penalty"),
        ({"min_p": -0.5}, "sampling.min_p"),
        ({"logprobs": 21}, "sampling.logprobs"),
        ({"logit_bias": {200: 1.0}}, "sampling.logit_bias"),
    ],
)
def test_a_bad_sampling_option_is_refused_by_field(tmp_path: Path, sampling: dict[str, Any], field: str) -> None:
    code, _, _, details = failure(tmp_path, prompt(sampling=pb.Sampling(**sampling)))
    bad = error_details_pb2.BadRequest()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert details[0].Unpack(bad)
    assert bad.field_violations[0].field == field


def test_a_tiny_temperature_is_taken(tmp_path: Path) -> None:
    assert text_of(events(tmp_path, prompt(sampling=pb.Sampling(temperature=1e-12)))) == "ABC"


@pytest.mark.parametrize(
    ("stop", "field"),
    [
        (pb.Stop(strings=[""]), "stop.strings"),
        (pb.Stop(strings=["x" * 257]), "stop.strings"),
        (pb.Stop(strings=["x"] * 17), "stop.strings"),
        (pb.Stop(token_ids=[200]), "stop.token_ids"),
    ],
)
def test_a_bad_stop_option_is_refused_by_field(tmp_path: Path, stop: pb.Stop, field: str) -> None:
    _, message, _, _ = failure(tmp_path, prompt(stop=stop))
    assert message.startswith(field)


def test_another_model_name_is_not_found(tmp_path: Path) -> None:
    code, _, info, _ = failure(tmp_path, prompt(model="gpt-9"))
    assert (code, info.reason) == (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")


def test_a_request_id_with_odd_characters_is_refused(tmp_path: Path) -> None:
    _, message, _, _ = failure(tmp_path, prompt(request_id="a b"))
    assert message.startswith("request_id")


def test_a_template_that_refuses_is_an_invalid_argument_with_its_text(tmp_path: Path) -> None:
    chat = pb.ChatInput(messages=[pb.ChatMessage(role="tool", content="x")])
    code, message, _, _ = failure(tmp_path, pb.GenerateRequest(chat=chat))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "no tools" in message


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Overloaded("queue holds 32", 1.5), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (OverBudget("never fits"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (PromptTooLong(9, 8), grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_what_the_engine_refuses_keeps_its_status(tmp_path: Path, error: SipdError, code: grpc.StatusCode) -> None:
    found, message, info, _ = failure(tmp_path, prompt(), FakeEngine(refusal=error))
    assert (found, message, info.reason) == (code, str(error), error.reason)


def test_a_full_queue_says_when_to_try_again(tmp_path: Path) -> None:
    _, _, _, details = failure(tmp_path, prompt(), FakeEngine(refusal=Overloaded("queue holds 32", 1.5)))
    retry = error_details_pb2.RetryInfo()
    assert details[0].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 1500


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StorageFault("/m.gguf", 4096, "EIO"), grpc.StatusCode.UNAVAILABLE),
        (DataLoss("/m.gguf", 4096, "file ends"), grpc.StatusCode.DATA_LOSS),
        (EngineFault("pass 3 failed"), grpc.StatusCode.INTERNAL),
    ],
)
def test_a_failing_pass_ends_the_stream_with_its_status(
    tmp_path: Path, error: SipdError, code: grpc.StatusCode
) -> None:
    found, message, info, _ = failure(tmp_path, prompt(), FakeEngine(error=error))
    assert (found, message, info.reason) == (code, str(error), error.reason)


@pytest.mark.parametrize(
    ("state", "code", "reason"),
    [
        (DaemonState.DRAINING, grpc.StatusCode.UNAVAILABLE, "DRAINING"),
        (DaemonState.FAILED, grpc.StatusCode.INTERNAL, "ENGINE_FAULT"),
    ],
)
def test_a_daemon_that_does_not_serve_says_why(
    tmp_path: Path, state: DaemonState, code: grpc.StatusCode, reason: str
) -> None:
    async def body(server: Running, channel: grpc.aio.Channel) -> grpc.aio.AioRpcError:
        server.state.state = state
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await server.generate(channel, prompt()).read()
        return caught.value

    error = run(tmp_path, body)
    info = error_details_pb2.ErrorInfo()
    assert error.code() is code
    status_pb2.Status.FromString(dict(list(error.trailing_metadata()))["grpc-status-details-bin"]).details[0].Unpack(
        info
    )
    assert info.reason == reason


def test_bytes_that_are_no_request_are_an_invalid_argument(tmp_path: Path) -> None:
    async def body(_server: Running, channel: grpc.aio.Channel) -> grpc.aio.AioRpcError:
        method: Any = channel.unary_stream("/sipd.v1.GenerationService/Generate")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(b"\xff\xff\xff").read()
        return caught.value

    assert run(tmp_path, body).code() is grpc.StatusCode.INVALID_ARGUMENT


def test_progress_is_sent_while_nothing_else_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sipd.server.generation.GenerationService.__init__.__defaults__", (0.02,))
    engine = FakeEngine()
    engine.gate.clear()

    async def body(server: Running, channel: grpc.aio.Channel) -> list[Any]:
        found = []
        async for event in server.generate(channel, prompt()):
            found.append(event)
            if event.WhichOneof("event") == "progress":
                engine.gate.set()
        return found

    found = run(tmp_path, body, engine)
    progress = next(event.progress for event in found if event.WhichOneof("event") == "progress")
    assert (progress.prompt_tokens_done, progress.prompt_tokens, progress.layer, progress.n_layers) == (3, 5, 7, 30)
    assert text_of(found) == "ABC"


def test_a_cancelled_call_reaches_the_engine_and_the_journal(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.gate.clear()

    async def body(server: Running, channel: grpc.aio.Channel) -> list[dict[str, str]]:
        call = server.generate(channel, prompt(request_id="gone"))
        await call.read()
        call.cancel()
        await asyncio.to_thread(engine.was_cancelled.wait, WAIT_S)
        await asyncio.to_thread(engine.threads[0].join, WAIT_S)
        return server.records

    records = run(tmp_path, body, engine)
    assert "gone" in engine.cancelled
    assert [record["SIPD_FINISH_REASON"] for record in records] == ["cancelled"]


def test_a_deadline_ends_the_call_and_is_told_in_the_journal(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.gate.clear()

    async def body(server: Running, channel: grpc.aio.Channel) -> tuple[grpc.StatusCode, list[dict[str, str]]]:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in server.generate(channel, prompt(), timeout=0.2):
                pass
        await asyncio.to_thread(engine.was_cancelled.wait, WAIT_S)
        await asyncio.to_thread(engine.threads[0].join, WAIT_S)
        return caught.value.code(), server.records

    code, records = run(tmp_path, body, engine)
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert engine.requests[0].deadline is not None
    assert [record["SIPD_FINISH_REASON"] for record in records] == ["deadline"]


def test_a_vanished_client_is_noticed(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.gate.clear()

    async def body(server: Running, _channel: grpc.aio.Channel) -> bool:
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CLIENT, server.target, stdout=asyncio.subprocess.PIPE
        )
        assert client.stdout is not None
        assert await client.stdout.readline() == b"started\n"
        client.kill()
        await client.wait()
        return await asyncio.to_thread(engine.was_cancelled.wait, WAIT_S)

    assert run(tmp_path, body, engine)


def test_every_request_leaves_one_record_without_its_text(tmp_path: Path) -> None:
    async def body(server: Running, channel: grpc.aio.Channel) -> list[dict[str, str]]:
        async for _ in server.generate(channel, prompt("secret words")):
            pass
        with pytest.raises(grpc.aio.AioRpcError):
            await server.generate(channel, prompt("secret" * 20)).read()
        return server.records

    first, second = run(tmp_path, body)
    assert (first["SIPD_FINISH_REASON"], first["SIPD_PROMPT_TOKENS"], first["SIPD_STREAMED_BYTES"]) == (
        "length",
        "12",
        "1000",
    )
    assert (second["SIPD_FINISH_REASON"], second["SIPD_ERROR"]) == ("refused", "PROMPT_TOO_LONG")
    assert "secret" not in str([first, second])


def test_many_streams_at_once_all_end_well(tmp_path: Path) -> None:
    async def body(server: Running, channel: grpc.aio.Channel) -> list[str]:
        async def one() -> str:
            return text_of([event async for event in server.generate(channel, prompt())])

        return list(await asyncio.gather(*(one() for _ in range(30))))

    assert run(tmp_path, body) == ["ABC"] * 30


def test_a_request_is_refused_while_more_is_granted_than_a_lowered_limit_holds(tmp_path: Path) -> None:
    async def body(server: Running, channel: grpc.aio.Channel) -> None:
        ledger = server.state.ledger
        assert ledger is not None
        ledger.grant("pinned weights", 400 << 20)
        ledger.relimit(MemoryLimit(300 << 20, "cgroup v2", 300 << 20))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(aiter(server.generate(channel, pb.GenerateRequest(prompt="hello"))))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "lowered to 314572800 bytes while " in str(caught.value.details())
        assert server.records[-1]["SIPD_ERROR"] == "MEMORY_LIMIT_LOWERED"
        assert [(told["SIPD_EVENT"], told["SIPD_ERROR"]) for told in server.told] == [
            ("request_refused", "MEMORY_LIMIT_LOWERED")
        ]
        ledger.relimit(MemoryLimit(512 << 20, "cgroup v2", 512 << 20))
        events = [event async for event in server.generate(channel, pb.GenerateRequest(prompt="hello"))]
        assert events[-1].HasField("finished")

    run(tmp_path, body)


def test_a_request_that_the_engine_has_no_room_for_is_an_event_of_the_journal(tmp_path: Path) -> None:
    async def body(server: Running, channel: grpc.aio.Channel) -> list[dict[str, str]]:
        for name in ("first", "second"):
            with pytest.raises(grpc.aio.AioRpcError):
                await server.generate(channel, prompt(request_id=name)).read()
        return server.told

    (told,) = run(tmp_path, body, FakeEngine(refusal=OverBudget("9 KV pages, the budget holds 8")))
    assert told["MESSAGE"] == "request first refused: 9 KV pages, the budget holds 8"
    assert (told["SIPD_EVENT"], told["SIPD_ERROR"]) == ("request_refused", "OVER_BUDGET")
