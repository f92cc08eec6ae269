"""Named sessions: the cap, the idle time, and pages that go last."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from sipd.engine.kv_cache import PagePool
from sipd.engine.prefix_cache import Node, PrefixCache
from sipd.engine.sessions import Sessions

IDLE_S = 10.0


@dataclass
class Kept:
    """A cache of three idle pages and the sessions over it."""

    most: int = 2
    cache: PrefixCache = field(init=False)
    nodes: list[Node] = field(init=False)
    sessions: Sessions = field(init=False)

    def __post_init__(self) -> None:
        pool = PagePool(3, 1)
        self.cache = PrefixCache(pool)
        self.nodes = [self.cache.add(None, (i,), pool.take()) for i in range(3)]
        for node in self.nodes:
            self.cache._offer(node)
        self.sessions = Sessions(self.cache, self.most, IDLE_S)


def test_a_session_is_kept_until_it_was_idle_for_too_long() -> None:
    kept = Kept()
    assert kept.sessions.keep("a", kept.nodes[0], 100.0) == []
    assert kept.sessions.expire(100.0 + IDLE_S - 0.1) == []
    assert kept.sessions.expire(100.0 + IDLE_S) == ["a"]
    assert len(kept.sessions) == 0
    assert kept.nodes[0].n_sessions == 0


def test_a_turn_begins_the_idle_time_anew_and_moves_the_claim() -> None:
    kept = Kept()
    kept.sessions.keep("a", kept.nodes[0], 0.0)
    kept.sessions.keep("a", kept.nodes[1], 9.0)
    assert kept.sessions.expire(12.0) == []
    assert [node.n_sessions for node in kept.nodes] == [0, 1, 0]
    assert kept.sessions.keys == ["a"]


def test_one_more_than_the_cap_ends_the_longest_idle() -> None:
    kept = Kept()
    kept.sessions.keep("a", kept.nodes[0], 0.0)
    kept.sessions.keep("b", kept.nodes[1], 1.0)
    kept.sessions.keep("a", kept.nodes[0], 2.0)
    assert kept.sessions.keep("c", kept.nodes[2], 3.0) == ["b"]
    assert kept.sessions.keys == ["a", "c"]
    assert [node.n_sessions for node in kept.nodes] == [1, 0, 1]


def test_the_next_turn_of_a_session_at_the_cap_ends_no_other() -> None:
    kept = Kept()
    kept.sessions.keep("a", kept.nodes[0], 0.0)
    kept.sessions.keep("b", kept.nodes[1], 1.0)
    assert kept.sessions.keep("b", kept.nodes[2], 2.0) == []
    assert kept.sessions.keys == ["a", "b"]


def test_a_cap_of_none_keeps_none_and_says_so() -> None:
    kept = Kept(most=0)
    assert kept.sessions.keep("a", kept.nodes[0], 0.0) == ["a"]
    assert (len(kept.sessions), kept.nodes[0].n_sessions) == (0, 0)


def test_two_sessions_may_end_in_the_same_page() -> None:
    kept = Kept()
    kept.sessions.keep("a", kept.nodes[0], 0.0)
    kept.sessions.keep("b", kept.nodes[0], 0.0)
    kept.sessions.end("a")
    assert kept.nodes[0].n_sessions == 1


def test_an_unknown_session_ends_without_a_word() -> None:
    kept = Kept()
    kept.sessions.end("nobody")
    assert kept.sessions.keys == []


@pytest.mark.parametrize("is_ended", [False, True])
def test_pages_of_sessions_are_given_up_after_all_others_as_long_as_the_session_lives(is_ended: bool) -> None:
    kept = Kept()
    kept.sessions.keep("a", kept.nodes[0], 0.0)  # the page that was used longest ago
    if is_ended:
        kept.sessions.end("a")
    order = []
    while kept.cache.give_up():
        order += [i for i, node in enumerate(kept.nodes) if node.is_gone and i not in order]
    assert order == ([0, 1, 2] if is_ended else [1, 2, 0])


def test_a_session_whose_pages_were_forgotten_ends_as_any_other() -> None:
    kept = Kept()
    kept.sessions.keep("a", kept.nodes[0], 0.0)
    kept.cache.clear()
    assert kept.sessions.expire(1000.0) == ["a"]
