"""GenerationService over a real socket, with a fake engine."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

from sipd.text.assembler import TextDelta
from sipd.v1 import generation_pb2 as pb
from tests.unit.server.calls import events, prompt, run, text_of
from tests.unit.server.fakes import END_ID, WAIT_S, FakeAssembler, FakeEngine, Running

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


def test_a_stop_string_that_a_cut_off_character_completes_is_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeAssembler, "flush", lambda _self: TextDelta("", (), "\ufffd"))

    async def body(server: Running, channel: grpc.aio.Channel) -> tuple[Any, list[dict[str, str]]]:
        request = prompt(stop=pb.Stop(strings=["\ufffd"], max_tokens=1))
        found = [event async for event in server.generate(channel, request)]
        return found[-1].finished, server.records

    finished, records = run(tmp_path, body)
    assert (finished.reason, finished.stop_string) == (pb.FINISH_REASON_STOP, "\ufffd")
    assert records[0]["SIPD_FINISH_REASON"] == "stop"


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
    assert [(record["SIPD_FINISH_REASON"], record["SIPD_ERROR"]) for record in records] == [
        ("deadline", "DEADLINE_EXCEEDED")
    ]


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
