"""What outlives a request, and what does not outlive one that only gives way."""

from __future__ import annotations

from pathlib import Path

from sipd.engine.keeper import Keeper
from sipd.engine.sessions import Sessions
from sipd.kernels.binding import PAGE_POSITIONS as PAGE
from tests.unit.engine.snapshot_kit import Kit

IDS = tuple(range(5 * PAGE + 3))


def test_a_session_that_gives_way_is_in_the_middle_of_its_turn_and_nothing_goes_to_the_disk(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.reuse.sessions = sessions = Sessions(kit.cache, 4, 600.0)
    keeper = Keeper(kit.reuse, kit.snapshots)
    sequence = kit.admit(IDS, session="chat")
    kit.compute(sequence)
    keeper.give_way(sequence)
    assert (list(sessions.keys), kit.worker.writes) == ([], [])
    assert kit.pool.n_promised == 0
    again = kit.admit(IDS, session="chat")
    assert again.request.n_computed >= 5 * PAGE, "its pages are found again"
    kit.compute(again)
    keeper.end(again, 0.0)
    assert list(sessions.keys) == ["chat"]
    assert len(kit.worker.writes) == 1
