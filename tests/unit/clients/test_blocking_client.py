"""The blocking client against a scripted server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo

from sipd_client import Accepted, ChatMessage, Client, Finished, IdleTimeout, Progress, SipdClientError, Token
from sipd_client.v1.generation_pb2 import GenerateRequest, GenerateResponse, Priority
from tests.unit.clients.fake_server import BEARER, WAIT_S, Fake, fail, finished, progress, start, token


def text_of(events: Iterator[object]) -> str:
    return "".join(event.text for event in events if isinstance(event, Token))


def test_a_generation_yields_its_events_in_order(fake: Fake) -> None:
    with Client(fake.target) as client:
        kinds = [type(event) for event in client.generate("hi")]
    assert kinds == [Accepted, Progress, Token, Token, Finished]


def test_text_arrives_unchanged(fake: Fake) -> None:
    with Client(fake.target) as client:
        assert text_of(client.generate("hi")) == " Grüße 🌿\n"


def test_a_unix_socket_is_a_target(tmp_path: Path) -> None:
    servicer = Fake()
    server = start(servicer, f"unix:{tmp_path}/s")
    with Client(servicer.target) as client:
        assert text_of(client.generate("hi")) == " Grüße 🌿\n"
    server.stop(None).wait()


def test_options_that_are_not_given_stay_unset(fake: Fake) -> None:
    with Client(fake.target) as client:
        list(client.generate("hi"))
    assert fake.requests == [GenerateRequest(prompt="hi")]


def test_zero_is_sent_as_a_value(fake: Fake) -> None:
    with Client(fake.target) as client:
        list(client.generate("hi", temperature=0.0, seed=0, max_tokens=0, add_special_tokens=False))
    request = fake.requests[0]
    assert isinstance(request, GenerateRequest)
    assert request.sampling.HasField("temperature")
    assert request.sampling.HasField("seed")
    assert request.stop.HasField("max_tokens")
    assert request.HasField("add_special_tokens")
    assert not request.sampling.HasField("top_p")


def test_every_option_reaches_its_field(fake: Fake) -> None:
    with Client(fake.target) as client:
        list(
            client.generate(
                [1, 2],
                top_k=-5,
                seed=2**64 - 1,
                logit_bias={7: -100.0},
                stop=["\n", "é"],
                stop_token_ids=[9],
                ignore_end_tokens=True,
                include_stop_in_output=True,
                model="tiny",
                request_id="mine",
                parse_special_tokens=True,
                priority="background",
                session="kitchen",
                prefix_cache=False,
                speculation=False,
            )
        )
    request = fake.requests[0]
    assert isinstance(request, GenerateRequest)
    assert list(request.token_ids.ids) == [1, 2]
    assert request.sampling.top_k == -5
    assert request.sampling.seed == 2**64 - 1
    assert dict(request.sampling.logit_bias) == {7: -100.0}
    assert list(request.stop.strings) == ["\n", "é"]
    assert list(request.stop.token_ids) == [9]
    assert request.stop.ignore_end_tokens
    assert request.stop.include_stop_in_output
    assert (request.model, request.request_id, request.parse_special_tokens) == ("tiny", "mine", True)
    assert (request.priority, request.session) == (Priority.PRIORITY_BACKGROUND, "kitchen")
    assert request.HasField("prefix_cache")
    assert not request.prefix_cache
    assert request.HasField("speculation")
    assert not request.speculation


def test_messages_may_be_pairs_mappings_or_messages(fake: Fake) -> None:
    with Client(fake.target) as client:
        list(client.chat([("system", "s"), {"role": "user", "content": "u"}, ChatMessage(role="user", content="v")]))
    request = fake.requests[0]
    assert isinstance(request, GenerateRequest)
    assert [(message.role, message.content) for message in request.chat.messages] == [
        ("system", "s"),
        ("user", "u"),
        ("user", "v"),
    ]


def test_a_single_stop_string_is_not_taken_for_a_list_of_letters() -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(TypeError, match="wanted a list"):
        client.generate("hi", stop="end")


def test_an_unknown_option_is_refused() -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(TypeError, match="temprature"):
        client.generate("hi", temprature=1.0)  # type: ignore[call-arg]


def test_a_priority_that_is_not_known_is_refused_with_the_known_ones() -> None:
    with (
        Client("127.0.0.1:1") as client,
        pytest.raises(ValueError, match="priority: found 'high'"),
    ):
        client.generate("hi", priority="high")  # type: ignore[arg-type]


def test_the_token_travels_as_bearer_metadata(fake: Fake) -> None:
    with Client(fake.target, token=BEARER) as client:
        client.status()
        list(client.generate("hi"))
    assert [metadata["authorization"] for metadata in fake.metadata] == [f"Bearer {BEARER}", f"Bearer {BEARER}"]


def test_closing_the_generator_cancels_the_call(fake: Fake) -> None:
    fake.script = fake.hang
    with Client(fake.target) as client:
        events = client.generate("hi")
        next(events)
        assert not fake.ended.is_set()
        events.close()
        assert fake.ended.wait(WAIT_S)


def test_a_caller_that_stops_at_finished_cancels_nothing(fake: Fake) -> None:
    cancelled = []

    def script(_request: GenerateRequest, context: grpc.ServicerContext) -> Iterator[GenerateResponse]:
        yield finished()
        cancelled.append(not context.is_active())

    fake.script = script
    with Client(fake.target) as client:
        for event in client.generate("hi"):
            if isinstance(event, Finished):
                break
    assert fake.ended.wait(WAIT_S)
    assert cancelled == [False]


def test_silence_beyond_the_idle_timeout_cancels_the_call(fake: Fake) -> None:
    fake.script = fake.hang
    with Client(fake.target, idle_timeout_s=0.2) as client:
        events = client.generate("hi")
        next(events)
        with pytest.raises(IdleTimeout, match=r"no event for 0\.2 s"):
            next(events)
        assert fake.ended.wait(WAIT_S)


def test_each_event_restarts_the_idle_timeout(fake: Fake) -> None:
    pause = threading.Event()  # never set: waiting for it spends time

    def script(_request: GenerateRequest, _context: grpc.ServicerContext) -> Iterator[GenerateResponse]:
        for _ in range(5):
            pause.wait(0.3)
            yield progress()
        yield finished()

    fake.script = script
    with Client(fake.target, idle_timeout_s=1.0) as client:
        assert len(list(client.generate("hi"))) == 6


def test_the_callers_own_time_does_not_count_as_silence(fake: Fake) -> None:
    pause = threading.Event()
    with Client(fake.target, idle_timeout_s=0.3) as client:
        events = client.generate("hi")
        next(events)
        pause.wait(0.5)
        assert len(list(events)) == 4


def test_a_deadline_limits_the_whole(fake: Fake) -> None:
    fake.script = fake.hang
    with Client(fake.target) as client, pytest.raises(SipdClientError) as caught:
        list(client.generate("hi", deadline_s=0.3))
    assert caught.value.status == "DEADLINE_EXCEEDED"
    assert not isinstance(caught.value, IdleTimeout)


def test_error_details_are_decoded(fake: Fake) -> None:
    def script(_request: GenerateRequest, context: grpc.ServicerContext) -> Iterator[GenerateResponse]:
        fail(
            context,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "queue is full:\nwänted fewer",
            ErrorInfo(reason="QUEUE_FULL", domain="sipd", metadata={"max_queued": "8"}),
            BadRequest(field_violations=[BadRequest.FieldViolation(field="stop.strings", description="empty")]),
            RetryInfo(retry_delay=Duration(seconds=300, nanos=500_000_000)),
        )
        yield token("never")

    fake.script = script
    with Client(fake.target) as client, pytest.raises(SipdClientError) as caught:
        list(client.generate("hi"))
    error = caught.value
    assert (error.status, error.reason, error.metadata) == ("RESOURCE_EXHAUSTED", "QUEUE_FULL", {"max_queued": "8"})
    assert [(found.field, found.description) for found in error.violations] == [("stop.strings", "empty")]
    assert error.retry_after_s == 300.5
    assert str(error) == "RESOURCE_EXHAUSTED QUEUE_FULL: queue is full: wänted fewer"


def test_events_before_an_error_are_delivered(fake: Fake) -> None:
    def script(_request: GenerateRequest, context: grpc.ServicerContext) -> Iterator[GenerateResponse]:
        yield token("half")
        fail(context, grpc.StatusCode.DATA_LOSS, "model file changed", ErrorInfo(reason="MODEL_FILE_CHANGED"))

    fake.script = script
    with Client(fake.target) as client:
        events = client.generate("hi")
        first = next(events)
        assert isinstance(first, Token)
        assert first.text == "half"
        with pytest.raises(SipdClientError, match="DATA_LOSS MODEL_FILE_CHANGED: model file changed"):
            next(events)


def test_a_stream_without_finished_is_an_error(fake: Fake) -> None:
    fake.script = lambda _request, _context: iter([token("half")])
    with Client(fake.target) as client, pytest.raises(SipdClientError, match="NOT_FINISHED"):
        list(client.generate("hi"))


def test_an_event_of_a_later_version_is_skipped(fake: Fake) -> None:
    fake.script = lambda _request, _context: iter([GenerateResponse(), finished()])
    with Client(fake.target) as client:
        assert [type(event) for event in client.generate("hi")] == [Finished]


def test_a_daemon_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    with Client(f"unix:{tmp_path}/none") as client, pytest.raises(SipdClientError) as caught:
        client.status()
    assert caught.value.status == "UNAVAILABLE"


def test_model_and_status_are_told(fake: Fake) -> None:
    with Client(fake.target) as client:
        assert client.model().architecture == "llama"
        assert client.model("other").name == "other"
        assert [found.name for found in client.models()] == ["tiny"]
        assert client.status().version == "0.1.0"
        with pytest.raises(SipdClientError, match="NOT_FOUND -: absent: not served"):
            client.model("absent")


def test_text_and_token_ids_are_turned_into_each_other(fake: Fake) -> None:
    with Client(fake.target) as client:
        ids = client.tokenize("é🌿", parse_special_tokens=False)
        assert client.detokenize(ids) == "é🌿"
    assert fake.requests[0].HasField("parse_special_tokens")
    assert not fake.requests[0].HasField("add_special_tokens")


@pytest.mark.parametrize("target", ["", "unix:", "board", f"unix:/{'a' * 107}"])
def test_a_target_that_cannot_be_one_is_refused(target: str) -> None:
    with pytest.raises(ValueError, match="target"):
        Client(target)
