"""What the journal is told of refused requests: the first at once, a flood as counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sipd.errors import (
    ClientLimit,
    Draining,
    InvalidRequest,
    MemoryLimitLowered,
    OverBudget,
    Overloaded,
    SipdError,
    Starting,
)
from sipd.server.events import Events
from sipd.server.refusals import EVERY_S, Refusals


class Rig:
    """Refusals over a list of events, and a clock that is turned by hand."""

    def __init__(self) -> None:
        self.told: list[dict[str, str]] = []
        self._due: list[tuple[float, Callable[[], None]]] = []
        self.now = 0.0
        self.refusals = Refusals(Events(lambda _text, **fields: self.told.append(fields)), self._later)

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        self._due.append((self.now + seconds, call))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        due = [entry for entry in self._due if entry[0] <= self.now]
        self._due = [entry for entry in self._due if entry[0] > self.now]
        for _, call in due:
            call()

    @property
    def counts(self) -> list[tuple[str, str, str]]:
        return [(each["SIPD_ERROR"], each["SIPD_REQUEST_ID"], each["SIPD_REFUSED"]) for each in self.told]

    @property
    def calls(self) -> list[tuple[str, str, str]]:
        return [(each["SIPD_ERROR"], each["SIPD_CLIENT"], each["SIPD_REFUSED"]) for each in self.told]


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.mark.parametrize(
    "error",
    [OverBudget("too long"), MemoryLimitLowered(1, 2), Overloaded("full", 1.0), ClientLimit("16 under way", 1.0)],
    ids=lambda error: error.reason,
)
def test_a_refusal_for_want_of_room_is_told_at_once(rig: Rig, error: SipdError) -> None:
    rig.refusals.note("r1", error)
    assert rig.counts == [(error.reason, "r1", "1")]


@pytest.mark.parametrize(
    "error", [InvalidRequest("input", "empty"), Draining("stopping"), Starting("soon")], ids=lambda error: error.reason
)
def test_other_refusals_are_no_event(rig: Rig, error: SipdError) -> None:
    rig.refusals.note("r1", error)
    assert rig.told == []


def test_a_flood_is_one_event_a_minute_that_counts_every_refusal(rig: Rig) -> None:
    for n in range(3000):
        rig.refusals.note(f"r{n}", Overloaded("full", 1.0))
        if n % 1000 == 999:
            rig.wait(EVERY_S)
    assert rig.counts == [
        ("QUEUE_FULL", "r0", "1"),
        ("QUEUE_FULL", "r999", "999"),
        ("QUEUE_FULL", "r1999", "1000"),
        ("QUEUE_FULL", "r2999", "1000"),
    ]


def test_reasons_are_counted_apart(rig: Rig) -> None:
    for name in ("a", "b"):
        rig.refusals.note(name, Overloaded("full", 1.0))
        rig.refusals.note(name, OverBudget("too long"))
    assert rig.counts == [("QUEUE_FULL", "a", "1"), ("OVER_BUDGET", "a", "1")]


def test_after_a_quiet_minute_the_next_refusal_is_told_at_once_again(rig: Rig) -> None:
    rig.refusals.note("a", Overloaded("full", 1.0))
    rig.wait(EVERY_S)
    rig.refusals.note("b", Overloaded("full", 1.0))
    rig.wait(EVERY_S - 1)
    rig.refusals.note("c", Overloaded("full", 1.0))
    assert rig.counts == [("QUEUE_FULL", "a", "1"), ("QUEUE_FULL", "b", "1")]


def test_no_error_is_kept_with_the_prompt_that_its_traceback_holds(rig: Rig) -> None:
    rig.refusals.note("a", Overloaded("full", 1.0))
    rig.refusals.note("b", Overloaded("full", 1.0))
    (more,) = rig.refusals._more.values()
    assert (more.n, more.name, more.text) == (1, "b", "full")


def test_a_call_without_a_request_is_told_whatever_was_wrong_and_a_flood_of_them_counted(rig: Rig) -> None:
    for n in range(1000):
        rig.refusals.note_call(f"ip:10.0.0.{n % 7}", InvalidRequest("request", "2 bytes are no valid message"))
    rig.wait(EVERY_S)
    assert rig.calls == [("INVALID_FIELD", "ip:10.0.0.0", "1"), ("INVALID_FIELD", "ip:10.0.0.5", "999")]
    assert rig.told[0]["SIPD_EVENT"] == "call_refused"


def test_calls_and_requests_with_the_same_reason_are_counted_apart(rig: Rig) -> None:
    rig.refusals.note_call("ip:10.0.0.1", Overloaded("256 calls are open", 1.0))
    rig.refusals.note("r1", Overloaded("full", 1.0))
    assert [each["SIPD_EVENT"] for each in rig.told] == ["call_refused", "request_refused"]
