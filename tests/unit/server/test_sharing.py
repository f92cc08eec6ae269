"""What a request says of its priority, session, cache and drafts, and what each client and waiter is told."""

# ruff: noqa: ANN401 - grpc's channels and calls are untyped

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from sipd.config import Config
from sipd.engine.request import Priority, Request
from sipd.v1 import generation_pb2 as pb
from tests.unit.server.calls import events, failure, prompt, run
from tests.unit.server.fakes import WAIT_S, FakeEngine, Running, rest

LOOPBACK = "127.0.0.1:0"


def taken(folder: Path, message: pb.GenerateRequest, **options: Any) -> Request:
    """Returns the engine's request for `message`."""
    engine = FakeEngine()
    events(folder, message, engine, **options)
    return engine.requests[0]


def test_a_request_that_says_nothing_is_interactive_and_may_reuse_and_draft(tmp_path: Path) -> None:
    request = taken(tmp_path, prompt())
    assert request.priority is Priority.INTERACTIVE
    assert request.uses_prefix_cache
    assert request.speculates
    assert request.session == ""


def test_a_request_can_switch_cache_and_drafts_off(tmp_path: Path) -> None:
    request = taken(tmp_path, prompt(prefix_cache=False, speculation=False))
    assert not request.uses_prefix_cache
    assert not request.speculates


def test_a_request_cannot_switch_on_what_the_settings_switch_off(tmp_path: Path) -> None:
    config = Config(prefix_cache=False, speculation=False)
    request = taken(tmp_path, prompt(prefix_cache=True, speculation=True), config=config)
    assert not request.uses_prefix_cache
    assert not request.speculates


@pytest.mark.parametrize(
    ("asked", "priority", "echoed"),
    [
        (pb.PRIORITY_UNSPECIFIED, Priority.INTERACTIVE, pb.PRIORITY_INTERACTIVE),
        (pb.PRIORITY_INTERACTIVE, Priority.INTERACTIVE, pb.PRIORITY_INTERACTIVE),
        (pb.PRIORITY_BACKGROUND, Priority.BACKGROUND, pb.PRIORITY_BACKGROUND),
    ],
)
def test_the_priority_reaches_the_engine_and_is_echoed(
    tmp_path: Path, asked: Any, priority: Priority, echoed: int
) -> None:
    engine = FakeEngine()
    found = events(tmp_path, prompt(priority=asked), engine)
    assert engine.requests[0].priority is priority
    assert found[0].accepted.priority == echoed


def test_a_priority_that_is_not_known_is_refused_by_field(tmp_path: Path) -> None:
    message = pb.GenerateRequest.FromString(prompt().SerializeToString() + b"\x50\x07")  # field 10, value 7
    code, text, _, _ = failure(tmp_path, message)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text == "priority: found 7, wanted one of [0, 1, 2]"


def test_a_session_is_echoed_and_belongs_to_its_owner(tmp_path: Path) -> None:
    engine = FakeEngine()
    found = events(tmp_path, prompt(session="kitchen.1"), engine)
    assert found[0].accepted.session == "kitchen.1"
    assert engine.requests[0].session == "local/kitchen.1"


@pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 65, "é"])
def test_a_session_name_with_odd_characters_is_refused_by_field(tmp_path: Path, name: str) -> None:
    code, text, _, details = failure(tmp_path, prompt(session=name))
    bad = error_details_pb2.BadRequest()
    assert details[0].Unpack(bad)
    assert (code, bad.field_violations[0].field) == (grpc.StatusCode.INVALID_ARGUMENT, "session")
    assert text == "session: wanted 1 to 64 characters of A-Z a-z 0-9 . _ : -"


@pytest.mark.parametrize(
    ("config", "changes"),
    [(Config(max_sessions=0), {}), (Config(prefix_cache=False), {}), (Config(), {"prefix_cache": False})],
)
def test_where_sessions_are_off_a_request_has_none_and_is_served(
    tmp_path: Path, config: Config, changes: dict[str, Any]
) -> None:
    engine = FakeEngine()
    found = events(tmp_path, prompt(session="kitchen", **changes), engine, config=config)
    assert (found[0].accepted.session, engine.requests[0].session) == ("", "")
    assert found[-1].WhichOneof("event") == "finished"


def test_finished_tells_what_was_restored_drafted_and_accepted(tmp_path: Path) -> None:
    usage = {"cached_tokens": 4, "restored_tokens": 3, "drafted_tokens": 2, "accepted_tokens": 1}
    found = events(tmp_path, prompt(), FakeEngine(usage=usage))[-1].finished.usage
    assert (found.cached_tokens, found.restored_tokens, found.drafted_tokens, found.accepted_tokens) == (4, 3, 2, 1)


def test_the_record_tells_client_priority_and_session(tmp_path: Path) -> None:
    async def body(server: Running, channel: grpc.aio.Channel) -> list[dict[str, str]]:
        message = prompt(session="kitchen", priority=pb.PRIORITY_BACKGROUND)
        async for _ in server.generate(channel, message):
            pass
        return server.records

    record = run(tmp_path, body)[0]
    assert (record["SIPD_CLIENT"], record["SIPD_PRIORITY"], record["SIPD_SESSION"]) == (
        "local:unix",
        "background",
        "kitchen",
    )


def reason_of(error: grpc.aio.AioRpcError) -> tuple[str, bool]:
    """Returns the stable reason, and whether the status says when to try again."""
    details = status_pb2.Status.FromString(dict(list(error.trailing_metadata()))["grpc-status-details-bin"]).details
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert details[0].Unpack(info)
    return info.reason, any(detail.Unpack(retry) for detail in details[1:])


def test_a_client_above_its_limit_is_refused_at_once_and_another_is_served(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.gate.clear()

    async def body(server: Running, channel: grpc.aio.Channel) -> tuple[list[dict[str, str]], str, int]:
        calls = [server.generate(channel, prompt()) for _ in range(2)]
        for call in calls:
            await call.read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await server.generate(channel, prompt(request_id="third")).read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert reason_of(caught.value) == ("CLIENT_LIMIT", True)
        refusals = list(server.records)
        # Another connection is another client on loopback; a channel of equal arguments would share the first one.
        async with grpc.aio.insecure_channel(server.target, options=[("grpc.use_local_subchannel_pool", 1)]) as other:
            call = server.generate(other, prompt())
            first = await call.read()
            engine.gate.set()
            await rest(call)
        for call in calls:
            await rest(call)
        return refusals, first.WhichOneof("event"), server.state.places.n_clients

    refusals, first, n_clients = run(tmp_path, body, engine, config=Config(max_requests_per_client=2), target=LOOPBACK)
    assert [(each["SIPD_REQUEST_ID"], each["SIPD_ERROR"]) for each in refusals] == [("third", "CLIENT_LIMIT")]
    assert refusals[0]["SIPD_CLIENT"].startswith("local:127.0.0.1:")
    assert (first, n_clients) == ("accepted", 0)


def test_a_cancelled_request_gives_its_clients_place_back(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.gate.clear()

    async def body(server: Running, channel: grpc.aio.Channel) -> str:
        call = server.generate(channel, prompt())
        await call.read()
        call.cancel()
        await asyncio.to_thread(engine.was_cancelled.wait, WAIT_S)
        first = await server.generate(channel, prompt()).read()
        return str(first.WhichOneof("event"))

    config = Config(max_requests_per_client=1)
    assert run(tmp_path, body, engine, config=config, target=LOOPBACK) == "accepted"


def test_programs_on_one_unix_socket_are_not_limited_as_one_client(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.gate.clear()

    async def body(server: Running, channel: grpc.aio.Channel) -> list[str]:
        calls = [server.generate(channel, prompt()) for _ in range(3)]
        return [(await call.read()).WhichOneof("event") for call in calls]

    assert run(tmp_path, body, engine, config=Config(max_requests_per_client=1)) == ["accepted"] * 3


@pytest.fixture
def _no_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves only what the queue itself sends."""
    monkeypatch.setattr("sipd.server.generation.GenerationService.__init__.__defaults__", (100 * WAIT_S,))


async def next_place(call: Any) -> int:
    """Returns the place in the queue that the next event tells, which must be a progress event."""
    event = await call.read()
    assert event.WhichOneof("event") == "progress"
    return int(event.progress.queue_position)


@pytest.mark.usefixtures("_no_sign_of_life")
def test_a_waiting_request_is_told_when_its_place_changes_and_when_it_is_admitted(tmp_path: Path) -> None:
    engine = FakeEngine(position=5)
    engine.admission.clear()
    engine.gate.clear()

    async def body(server: Running, channel: grpc.aio.Channel) -> list[int]:
        call = server.generate(channel, prompt())
        places = [(await call.read()).accepted.queue_position]
        engine.position = 4
        others = [server.generate(channel, prompt())]  # the queue moves: somebody came
        places.append(await next_place(call))
        others.append(server.generate(channel, prompt()))  # it moves behind the place that was told
        for other in others:
            await other.read()
        engine.position = 0
        engine.admission.set()  # it moves: all are admitted
        places.append(await next_place(call))
        return places

    assert run(tmp_path, body, engine) == [5, 4, 0]


@pytest.mark.usefixtures("_no_sign_of_life")
def test_a_waiting_request_is_told_when_another_ends(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.gate.clear()

    async def body(server: Running, channel: grpc.aio.Channel) -> int:
        running = server.generate(channel, prompt())
        await running.read()
        engine.admission.clear()
        engine.position = 5
        call = server.generate(channel, prompt())
        assert (await call.read()).accepted.queue_position == 5
        engine.position = 4
        engine.gate.set()
        await rest(running)
        return await next_place(call)

    assert run(tmp_path, body, engine) == 4


def test_a_place_that_stays_the_same_is_not_told_again(tmp_path: Path) -> None:
    engine = FakeEngine(position=5)
    engine.admission.clear()

    async def body(server: Running, channel: grpc.aio.Channel) -> list[str]:
        calls = [server.generate(channel, prompt()) for _ in range(3)]
        for call in calls:
            await call.read()
        engine.admission.set()
        return [str(event.WhichOneof("event")) for event in await rest(calls[0])]

    assert run(tmp_path, body, engine) == ["token", "token", "token", "finished"]


def test_a_queue_that_moves_all_the_time_does_not_silence_the_sign_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sipd.server.generation.GenerationService.__init__.__defaults__", (0.05,))
    engine = FakeEngine(position=5)
    engine.admission.clear()

    async def body(server: Running, channel: grpc.aio.Channel) -> str:
        call = server.generate(channel, prompt())
        await call.read()
        found = asyncio.ensure_future(call.read())
        while not found.done():
            async with asyncio.timeout(WAIT_S):
                await server.generate(channel, prompt()).read()
        return str(found.result().WhichOneof("event"))

    assert run(tmp_path, body, engine) == "progress"
