"""What GenerationService refuses, and with which status, reason and words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from sipd.errors import DataLoss, EngineFault, OverBudget, Overloaded, PromptTooLong, SipdError, StorageFault
from sipd.memory import MemoryLimit
from sipd.server.service_state import DaemonState
from sipd.v1 import generation_pb2 as pb
from tests.unit.server.calls import events, failure, prompt, run, text_of
from tests.unit.server.fakes import FakeEngine, Running


def test_zero_max_tokens_is_refused_by_name(tmp_path: Path) -> None:
    code, message, _, _ = failure(tmp_path, prompt(stop=pb.Stop(max_tokens=0)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "stop.max_tokens" in message


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


def test_a_path_that_is_no_utf_8_is_told_all_the_same(tmp_path: Path) -> None:
    error = DataLoss("/m\udcff.gguf", 4096, "file ends")
    code, message, info, _ = failure(tmp_path, prompt(), FakeEngine(error=error))
    assert (code, message) == (grpc.StatusCode.DATA_LOSS, r"/m\udcff.gguf: at byte 4096: file ends")
    assert dict(info.metadata) == {"path": r"/m\udcff.gguf", "offset": "4096"}


@pytest.mark.parametrize("char", ["a", "é", "模", "🌿", "%"])
def test_a_long_name_in_any_script_keeps_status_and_reason(tmp_path: Path, char: str) -> None:
    code, message, info, _ = failure(tmp_path, prompt(model=char * 5000))
    assert (code, info.reason) == (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")
    assert message.endswith("' is not served, wanted 'tiny'")


def test_a_fault_of_ours_is_an_internal_fault_without_its_text(tmp_path: Path) -> None:
    engine = FakeEngine(refusal=RuntimeError("private"))  # type: ignore[arg-type]
    code, message, info, _ = failure(tmp_path, prompt(), engine)
    assert (code, info.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL_FAULT")
    assert message == "internal fault, see the daemon's log"


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
