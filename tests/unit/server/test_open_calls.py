"""Places of open calls: what one client can hold, and what it leaves to others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from sipd.errors import ClientLimit, Overloaded
from sipd.server.client_identity import ClientIdentity
from sipd.server.open_calls import MAX_CALLS, MAX_UNREAD, OpenCalls

ONE, OTHER = ClientIdentity("ip:10.0.0.1", "ip:10.0.0.1"), ClientIdentity("ip:10.0.0.2", "ip:10.0.0.2")
UNIX = ClientIdentity("local:unix", "local", is_shared=True)
LOOPBACK = ClientIdentity("local:127.0.0.1:40512", "local")
SHARE, LOCAL_SHARE = MAX_CALLS // 4, MAX_CALLS // 4 * 3


@pytest.fixture
def calls() -> OpenCalls:
    return OpenCalls()


@pytest.fixture
def held() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def fill(calls: OpenCalls, held: ExitStack, client: ClientIdentity, n_calls: int) -> None:
    for _ in range(n_calls):
        held.enter_context(calls.hold(client))


def client(number: int) -> ClientIdentity:
    return ClientIdentity(f"ip:10.0.1.{number}", f"ip:10.0.1.{number}")


def test_a_client_with_a_quarter_of_all_places_gets_no_more_and_others_do(calls: OpenCalls, held: ExitStack) -> None:
    fill(calls, held, ONE, SHARE)
    with pytest.raises(ClientLimit, match=r"ip:10\.0\.0\.1 has 64 calls open, one client may have 64"):
        fill(calls, held, ONE, 1)
    fill(calls, held, OTHER, 1)


def test_a_share_that_the_settings_make_larger_counts(held: ExitStack) -> None:
    calls = OpenCalls(client_share=100)
    fill(calls, held, ONE, 100)
    with pytest.raises(ClientLimit, match="one client may have 100"):
        fill(calls, held, ONE, 1)


def test_all_places_together_are_bounded(calls: OpenCalls, held: ExitStack) -> None:
    for number in range(4):
        fill(calls, held, client(number), SHARE)
    with pytest.raises(Overloaded, match="256 calls are open already, wanted at most 256") as caught:
        fill(calls, held, ONE, 1)
    assert not isinstance(caught.value, ClientLimit)


def test_programs_of_the_machine_leave_a_quarter_to_the_network(calls: OpenCalls, held: ExitStack) -> None:
    fill(calls, held, UNIX, LOCAL_SHARE)
    for local in (UNIX, LOOPBACK):
        with pytest.raises(Overloaded, match="local programs have 192 calls open, wanted at most 192"):
            fill(calls, held, local, 1)
    fill(calls, held, ONE, SHARE)


def test_calls_that_ended_are_counted_no_more(calls: OpenCalls, held: ExitStack) -> None:
    for _ in range(2):
        with ExitStack() as first:
            fill(calls, first, UNIX, LOCAL_SHARE)
            fill(calls, first, ONE, SHARE)
    fill(calls, held, UNIX, LOCAL_SHARE)
    fill(calls, held, ONE, SHARE)


def test_an_unread_call_gives_its_place_up_and_still_counts_for_its_client(calls: OpenCalls, held: ExitStack) -> None:
    for _ in range(SHARE):
        calls.set_unread(held.enter_context(calls.hold(ONE)))
    with pytest.raises(ClientLimit):
        fill(calls, held, ONE, 1)
    for number in range(4):
        fill(calls, held, client(number), SHARE)


def test_unread_calls_of_programs_that_share_a_name_make_room_until_there_are_too_many(
    calls: OpenCalls, held: ExitStack
) -> None:
    for _ in range(MAX_UNREAD):
        calls.set_unread(held.enter_context(calls.hold(UNIX)))
    for _ in range(LOCAL_SHARE):
        calls.set_unread(held.enter_context(calls.hold(UNIX)))
    with pytest.raises(Overloaded):
        fill(calls, held, UNIX, 1)


def test_an_unread_call_that_ends_makes_room_for_another_unread_one(calls: OpenCalls) -> None:
    for _ in range(2 * MAX_UNREAD):
        with calls.hold(UNIX) as call:
            calls.set_unread(call)
            calls.set_unread(call)
            assert call.is_unread
