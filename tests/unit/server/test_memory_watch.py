from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sipd.cgroup import find_memory_cgroup
from sipd.memory import Grant, Ledger, open_ledger
from sipd.server.events import Events
from sipd.server.memory_watch import CLOCK_JUMP_S, LIMIT_MET_EVERY_S, MemoryWatch
from tests.unit.test_cgroup import V2, machine

MIB = 1024**2


class FittingEngine:
    """When `border` comes, gives back what is too much of its pinned weights, or takes back what there is room for."""

    def __init__(self, pins: Grant) -> None:
        self._pins = pins
        self._most = pins.n_bytes
        self._over: Callable[[], int] | None = None
        self._room: Callable[[], int] | None = None

    def shrink(self, over: Callable[[], int]) -> None:
        self._over = over

    def grow(self, room: Callable[[], int]) -> None:
        self._room = room

    def border(self) -> None:
        if self._over is not None:
            self._pins.resize(max(0, self._pins.n_bytes - self._over()))
        if self._room is not None:
            self._pins.resize(min(self._most, self._pins.n_bytes + self._room()))
        self._over = self._room = None

    @property
    def pinned(self) -> int:
        return self._pins.n_bytes


class Board:
    """A daemon's memory watch in a cgroup that the test writes."""

    def __init__(self, folder: Path, pinned_bytes: int = 0, budget_bytes: int | None = None) -> None:
        self.folder = folder
        self.now = self.wall = 1000.0
        self.sent: list[dict[str, str]] = []
        files = {
            "cg/a/memory.events": "max 5\noom_kill 2",
            "cg/a/b/memory.events": "max 0\noom_kill 0",
            "cg/a/b/memory.max": str(800 * MIB),
        }
        proc = machine(folder, "0::/a/b\n", [V2], files)
        self.ledger: Ledger = open_ledger(budget_bytes, proc)
        self.engine = FittingEngine(self.ledger.grant("pinned weights", pinned_bytes))
        self.watch = MemoryWatch(
            self.ledger,
            self.engine,
            Events(lambda message, **fields: self.sent.append({"MESSAGE": message, **fields})),
            find_memory_cgroup(proc),
            clock=lambda: self.now,
            wall=lambda: self.wall,
        )

    def set(self, level: str = "a/b", **files: str) -> None:
        for name, text in files.items():
            (self.folder / "cg" / level / name.replace("_", ".")).write_text(text + "\n")

    def events(self) -> list[str]:
        self.watch.look()
        return [each["SIPD_EVENT"] for each in self.sent]


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path, 300 * MIB)


def test_a_quiet_machine_is_told_nothing_of(board: Board) -> None:
    assert board.events() == []


def test_a_lowered_limit_is_told_once_and_memory_is_given_back_at_the_border(board: Board) -> None:
    needed = board.ledger.shortfall().needed_bytes
    board.set(memory_max=str(needed - 100 * MIB))
    assert board.events() == ["limit_lowered"]
    over = board.ledger.shortfall().n_bytes
    assert over > 0
    board.engine.border()
    assert board.events() == ["limit_lowered", "memory_shrunk"]
    assert board.sent[-1]["SIPD_FREED"] == str(over)
    assert board.sent[-1]["SIPD_OVER"] == "0"
    board.engine.border()
    assert board.events() == ["limit_lowered", "memory_shrunk"]


def test_what_cannot_be_given_back_stays_a_shortfall_until_the_limit_is_raised(board: Board) -> None:
    board.set(memory_max=str(10 * MIB))
    board.watch.look()
    board.engine.border()
    assert board.events() == ["limit_lowered", "memory_shrunk"]
    assert int(board.sent[-1]["SIPD_OVER"]) > 0
    assert board.ledger.shortfall().n_bytes > 0
    board.set(memory_max=str(800 * MIB))
    assert board.events()[-1] == "limit_raised"
    assert board.ledger.shortfall().n_bytes == 0


def test_what_was_given_back_is_taken_again_as_far_as_a_raised_limit_goes(board: Board) -> None:
    needed = board.ledger.shortfall().needed_bytes
    board.set(memory_max=str(needed - 100 * MIB))
    board.watch.look()
    board.engine.border()
    lowest = board.engine.pinned
    board.set(memory_max=str(needed - 40 * MIB))
    assert board.events()[-1] == "limit_raised"
    board.engine.border()
    assert lowest < board.engine.pinned < 300 * MIB
    assert (board.ledger.remaining(), board.ledger.shortfall().n_bytes) == (0, 0)
    board.set(memory_max=str(800 * MIB))
    n_told = len(board.events())
    board.engine.border()
    assert board.engine.pinned == 300 * MIB
    assert len(board.events()) == n_told


def test_what_was_given_back_under_a_budget_of_ones_own_is_taken_again_too(tmp_path: Path) -> None:
    board = Board(tmp_path, 300 * MIB, budget_bytes=600 * MIB)
    board.ledger.file_bytes = 100 * MIB  # have room in 800 MiB, not in 610
    board.ledger.grant("caches", board.ledger.remaining())
    board.set(memory_max=str(610 * MIB))
    board.watch.look()
    board.engine.border()
    assert board.engine.pinned < 300 * MIB
    board.set(memory_max=str(800 * MIB))
    board.watch.look()
    board.engine.border()
    assert board.engine.pinned == 300 * MIB


def test_a_limit_that_is_raised_and_still_too_low_takes_nothing_back(board: Board) -> None:
    board.set(memory_max=str(10 * MIB))
    board.watch.look()
    board.engine.border()
    board.set(memory_max=str(11 * MIB))
    assert board.events()[-1] == "limit_raised"
    board.engine.border()
    assert board.engine.pinned == 0


def test_an_engine_that_cannot_shrink_is_left_alone(board: Board) -> None:
    watch = MemoryWatch(board.ledger, object(), Events(lambda *_args, **_fields: None), None)
    board.set(memory_max=str(10 * MIB))
    watch.look()
    assert board.ledger.shortfall().n_bytes > 0


def test_a_killed_process_is_told_with_the_lowest_group_that_counted_it(board: Board) -> None:
    board.set("a", memory_events="max 5\noom_kill 3")
    assert board.events() == ["oom_kill"]
    assert board.sent[0]["SIPD_CGROUP"].endswith("cg/a")
    board.set("a", memory_events="max 5\noom_kill 5")
    board.set(memory_events="max 0\noom_kill 2")
    assert board.events() == ["oom_kill", "oom_kill"]
    assert board.sent[1]["SIPD_CGROUP"].endswith("cg/a/b")
    assert board.sent[1]["SIPD_KILLED"] == "2"


def test_a_limit_that_is_met_often_is_told_rarely(board: Board) -> None:
    board.set(memory_events="max 10\noom_kill 0")
    assert board.events() == []
    board.now += LIMIT_MET_EVERY_S
    board.wall += LIMIT_MET_EVERY_S
    assert board.events() == ["limit_met"]
    board.set(memory_events="max 90\noom_kill 0")
    assert board.events() == ["limit_met"]
    board.now += LIMIT_MET_EVERY_S
    board.wall += LIMIT_MET_EVERY_S
    assert board.events() == ["limit_met", "limit_met"]
    assert [each["SIPD_TIMES"] for each in board.sent] == ["10", "80"]


def test_a_clock_that_is_set_is_told_once(board: Board) -> None:
    board.wall += 3600.0
    assert board.events() == ["clock_jumped"]
    assert board.sent[0]["MESSAGE"] == "the clock was set by +3600 s"
    board.wall += CLOCK_JUMP_S / 2
    assert board.events() == ["clock_jumped"]
