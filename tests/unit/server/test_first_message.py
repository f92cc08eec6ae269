"""Calls wait for their turn to send, and one that sends nothing does not keep the others for long."""

# ruff: noqa: ANN401 - contexts are grpc's

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sipd.errors import DeadlineExceeded, Overloaded
from sipd.server import first_message
from sipd.server.client_identity import ClientIdentity
from sipd.server.first_message import LEAST_PATIENCE_S, PATIENCE_S, PROMPTS, SMALL, FirstMessages, Room
from tests.unit.server.fakes import WAIT_S

ONE, OTHER = ClientIdentity("ip:10.0.0.1", "ip:10.0.0.1"), ClientIdentity("ip:10.0.0.2", "ip:10.0.0.2")
UNIX = ClientIdentity("local:unix", "local", is_shared=True)


class Sender:
    """A call whose message comes when it is set."""

    def __init__(self) -> None:
        self.message: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.is_read = asyncio.Event()

    async def read(self) -> bytes:
        self.is_read.set()
        return await self.message


def start(messages: FirstMessages, sender: Sender, client: ClientIdentity) -> asyncio.Task[bytes]:
    context: Any = sender
    return asyncio.ensure_future(messages.receive(context, client))


def run(body: Any) -> Any:
    async def main() -> Any:
        async with asyncio.timeout(WAIT_S):
            return await body()

    return asyncio.run(main())


def test_a_call_that_nobody_waits_for_has_a_second() -> None:
    assert PROMPTS.patience_s(0) == SMALL.patience_s(0) == PATIENCE_S == 1.0


@pytest.mark.parametrize("n_silent", [1, 16, 64])
def test_silent_calls_delay_a_question_by_a_twentieth_of_a_second_each_at_most(n_silent: int) -> None:
    assert sum(SMALL.patience_s(n) for n in range(1, n_silent + 1)) == pytest.approx(n_silent * LEAST_PATIENCE_S)


def test_sixteen_silent_calls_delay_a_prompt_by_less_than_three_seconds() -> None:
    assert sum(PROMPTS.patience_s(n) for n in range(1, 17)) < 3


def test_only_as_many_read_as_there_are_places() -> None:
    async def body() -> list[bool]:
        messages = FirstMessages(Room(n_at_once=2, max_late=0))
        senders = [Sender() for _ in range(3)]
        calls = [start(messages, sender, UNIX) for sender in senders]
        await asyncio.gather(senders[0].is_read.wait(), senders[1].is_read.wait())
        states = [sender.is_read.is_set() for sender in senders]
        for sender in senders:
            sender.message.set_result(b"m")
        assert await asyncio.gather(*calls) == [b"m"] * 3
        return states

    assert run(body) == [True, True, False]


def test_a_silent_call_makes_room_as_soon_as_somebody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_message, "PATIENCE_S", 10 * WAIT_S)  # alone it would stay for good
    monkeypatch.setattr(first_message, "LEAST_PATIENCE_S", 0.01)

    async def body() -> bytes:
        messages = FirstMessages(Room(n_at_once=1, max_late=1, max_bytes=10))
        silent, other = Sender(), Sender()
        first = start(messages, silent, UNIX)
        await silent.is_read.wait()
        other.message.set_result(b"m")
        message = await start(messages, other, UNIX)
        silent.message.set_result(b"late")
        assert await first == b"late"
        return message

    assert run(body) == b"m"


def late(monkeypatch: pytest.MonkeyPatch, *clients: ClientIdentity) -> list[BaseException]:
    """Returns how calls end that send nothing, in a room for four late ones."""
    for name in ("PATIENCE_S", "LEAST_PATIENCE_S"):
        monkeypatch.setattr(first_message, name, 0.01)
    monkeypatch.setattr(first_message, "LATE_S", 0.5)

    async def body() -> Any:
        messages = FirstMessages(Room(n_at_once=1, max_late=4))
        calls = [start(messages, Sender(), client) for client in clients]
        return await asyncio.gather(*calls, return_exceptions=True)

    found: list[BaseException] = run(body)
    return found


def test_a_late_client_has_half_of_the_late_room_and_others_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = late(monkeypatch, ONE, ONE, ONE, OTHER, OTHER)
    assert [type(end) for end in ends] == [
        *(DeadlineExceeded, DeadlineExceeded, Overloaded),
        *(DeadlineExceeded, DeadlineExceeded),
    ]


def test_clients_that_share_a_name_have_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = late(monkeypatch, *[UNIX] * 5)
    assert [type(end) for end in ends] == [DeadlineExceeded] * 4 + [Overloaded]
    assert str(ends[0]) == "the message did not come within 0.5 s"


def test_a_call_that_is_cancelled_gives_its_place_back() -> None:
    async def body() -> bytes:
        messages = FirstMessages(Room(n_at_once=1, max_late=0))
        gone, waiting, other = Sender(), Sender(), Sender()
        first, second = start(messages, gone, UNIX), start(messages, waiting, UNIX)
        await gone.is_read.wait()
        second.cancel()
        first.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        assert gone.message.cancelled()
        other.message.set_result(b"m")
        return await start(messages, other, UNIX)

    assert run(body) == b"m"
