"""The tree of pages: what is found again, what is shared, and what is given up first."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sipd.engine.kv_cache import PageList, PagePool, pages_for
from sipd.engine.prefix_cache import Node, PrefixCache
from sipd.kernels.binding import PAGE_POSITIONS as PAGE


class Tree:
    """A cache over a pool, and sequences that leave their pages in it."""

    def __init__(self, n_pages: int = 16) -> None:
        self.pool = PagePool(n_pages, 1)
        self.cache = PrefixCache(self.pool)

    def begin(self, ids: Sequence[int], n_computed: int | None = None) -> tuple[list[Node], PageList]:
        """A live sequence that computed all of `ids`, without a look at what was there."""
        n_computed = len(ids) if n_computed is None else n_computed
        assert self.pool.promise(pages_for(len(ids)))
        pages = PageList(self.pool, pages_for(len(ids)))
        pages.cover(n_computed)
        chain: list[Node] = []
        self.cache.publish(chain, pages, ids, n_computed)
        return chain, pages

    def end(self, chain: list[Node], pages: PageList, ids: Sequence[int]) -> Node | None:
        leaf = self.cache.keep_tail(chain, pages, ids, len(ids))
        self.cache.let_go(chain)
        pages.release()
        return leaf

    def leave(self, ids: Sequence[int]) -> Node | None:
        """A sequence that has come and gone."""
        return self.end(*self.begin(ids), ids)

    def found(self, ids: Sequence[int], limit: int | None = None) -> int:
        return self.cache.match(ids, len(ids) if limit is None else limit).n_positions

    def check(self) -> None:
        """Nobody lives: every page that is filled is in the tree and idle."""
        assert self.pool.n_promised == 0
        assert self.pool.n_filled == self.cache.n_idle


def numbers(n: int, first: int = 0) -> list[int]:
    return list(range(first, first + n))


def test_nothing_is_found_in_an_empty_tree() -> None:
    assert Tree().found(numbers(100)) == 0


@pytest.mark.parametrize("n", [1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE, 3 * PAGE + 5])
def test_all_of_a_sequence_that_ended_is_found_again(n: int) -> None:
    tree = Tree()
    tree.leave(numbers(n))
    assert tree.found(numbers(n + 40)) == n
    tree.check()


def test_whole_pages_are_for_everybody_and_parts_of_a_page_for_their_owner() -> None:
    tree = Tree()
    assert tree.pool.promise(2)
    pages = PageList(tree.pool, 2, "kitchen")
    pages.cover(PAGE + 9)
    chain: list[Node] = []
    ids = numbers(PAGE + 9)
    tree.cache.publish(chain, pages, ids, PAGE + 9)
    tree.end(chain, pages, ids)
    assert tree.cache.match(ids, PAGE + 9, "kitchen").n_positions == PAGE + 9
    assert tree.cache.match(ids, PAGE + 9, "guest").n_positions == PAGE
    assert tree.cache.match(ids, PAGE - 1, "guest").n_positions == 0


@pytest.mark.parametrize("limit", [0, 1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE - 1])
def test_no_more_is_found_than_was_asked_for(limit: int) -> None:
    tree = Tree()
    tree.leave(numbers(2 * PAGE))
    match = tree.cache.match(numbers(2 * PAGE), limit)
    assert match.n_positions == limit
    assert len(match.nodes) == limit // PAGE


@pytest.mark.parametrize("n_common", [0, 1, 20, PAGE, PAGE + 7, 2 * PAGE + 31])
def test_a_prompt_that_goes_on_differently_finds_the_common_head(n_common: int) -> None:
    tree = Tree()
    tree.leave(numbers(3 * PAGE))
    assert tree.found([*numbers(n_common), *numbers(60, 500)]) == n_common


def test_the_same_ids_behind_another_head_are_not_the_same_page() -> None:
    tree = Tree()
    tree.leave([*numbers(PAGE), *numbers(PAGE, 900)])
    assert tree.found([*numbers(PAGE, 100), *numbers(PAGE, 900)]) == 0


def test_ids_of_equal_hash_are_told_apart() -> None:
    tree = Tree()
    tree.leave([-1] * PAGE)
    assert hash((-1,) * PAGE) == hash((-2,) * PAGE)
    assert tree.found([-2] * PAGE) == 0


def test_the_child_with_most_in_common_serves_a_partial_page() -> None:
    tree = Tree()
    for n in (3, 9, 5):
        tree.leave([*numbers(n), *numbers(4, 100 * n)])
    match = tree.cache.match(numbers(20), 19)
    assert (match.nodes, match.n_positions) == ((), 9)


def test_two_live_sequences_with_the_same_head_hold_one_page() -> None:
    tree = Tree()
    one, first_pages = tree.begin(numbers(PAGE))
    two, second_pages = tree.begin(numbers(PAGE))
    assert one == two
    assert first_pages.pages == second_pages.pages
    assert (tree.pool.n_filled, tree.pool.n_promised) == (1, 1)
    tree.end(one, first_pages, numbers(PAGE))
    assert (tree.pool.n_promised, tree.cache.n_idle) == (1, 0)
    tree.end(two, second_pages, numbers(PAGE))
    tree.check()


def test_a_page_that_is_not_full_is_not_shared_while_its_sequence_lives() -> None:
    tree = Tree()
    chain, pages = tree.begin(numbers(PAGE + 9))
    assert tree.found(numbers(PAGE + 9)) == PAGE
    tree.end(chain, pages, numbers(PAGE + 9))
    assert tree.found(numbers(PAGE + 9)) == PAGE + 9


def test_positions_that_are_not_computed_are_not_published() -> None:
    tree = Tree()
    chain, pages = tree.begin(numbers(3 * PAGE), 2 * PAGE - 1)
    assert tree.found(numbers(3 * PAGE)) == PAGE
    tree.cache.let_go(chain)
    pages.release()
    tree.check()


def test_a_longer_tail_replaces_the_shorter_one() -> None:
    tree = Tree()
    tree.leave(numbers(5))
    tree.leave(numbers(9))
    assert (tree.pool.n_filled, tree.found(numbers(20))) == (1, 9)
    tree.check()


def test_a_shorter_tail_adds_nothing() -> None:
    tree = Tree()
    leaf = tree.leave(numbers(9))
    assert tree.leave(numbers(5)) is leaf
    assert tree.pool.n_filled == 1
    tree.check()


def test_a_whole_page_replaces_the_tail_that_it_continues() -> None:
    tree = Tree()
    tree.leave(numbers(9))
    tree.leave(numbers(PAGE))
    assert (tree.pool.n_filled, tree.found(numbers(PAGE))) == (1, PAGE)
    tree.check()


def test_a_tail_in_which_a_session_ends_stays_beside_the_longer_one() -> None:
    tree = Tree()
    leaf = tree.leave(numbers(5))
    assert leaf is not None
    tree.cache.mark_session(leaf)
    tree.leave(numbers(9))
    assert not leaf.is_gone
    tree.check()


def test_the_page_that_was_used_longest_ago_is_given_up_first() -> None:
    tree = Tree()
    for first in (0, 100, 200):
        tree.leave(numbers(5, first))
    tree.leave(numbers(5))  # used again
    assert tree.cache.give_up()
    assert [tree.found(numbers(5, first)) for first in (0, 100, 200)] == [5, 0, 5]
    tree.check()


def test_the_end_of_a_sequence_is_given_up_before_its_beginning() -> None:
    tree = Tree()
    tree.leave(numbers(3 * PAGE))
    found = []
    while tree.cache.give_up():
        found.append(tree.found(numbers(3 * PAGE)))
    assert found == [2 * PAGE, PAGE, 0]
    tree.check()


def test_a_page_in_use_is_never_given_up_and_its_head_neither() -> None:
    tree = Tree()
    chain, pages = tree.begin(numbers(2 * PAGE))
    assert not tree.cache.give_up()
    tree.end(chain, pages, numbers(2 * PAGE))
    assert tree.cache.give_up()


def test_idle_pages_make_room_for_a_sequence_that_needs_them_all() -> None:
    tree = Tree(4)
    tree.leave(numbers(4 * PAGE))
    chain, pages = tree.begin(numbers(4 * PAGE, 1000))
    assert len(set(pages.pages)) == 4
    assert tree.found(numbers(PAGE)) == 0
    tree.end(chain, pages, numbers(4 * PAGE, 1000))
    tree.check()


def test_a_session_ends_and_its_page_is_given_up_in_turn() -> None:
    tree = Tree()
    leaf = tree.leave(numbers(5))
    assert leaf is not None
    tree.leave(numbers(5, 100))
    tree.cache.mark_session(leaf)
    tree.cache.unmark_session(leaf)
    tree.cache.give_up()
    assert leaf.is_gone


def test_a_clear_forgets_idle_pages_at_once_and_others_when_they_are_let_go() -> None:
    tree = Tree()
    tree.leave(numbers(PAGE, 500))
    chain, pages = tree.begin(numbers(2 * PAGE))
    tree.cache.clear()
    assert (tree.found(numbers(2 * PAGE)), tree.found(numbers(PAGE, 500))) == (0, 0)
    assert (tree.pool.n_filled, tree.cache.n_idle) == (2, 0)
    assert tree.end(chain, pages, numbers(2 * PAGE)) is None
    assert tree.pool.n_filled == 0
    tree.check()


def test_a_sequence_whose_head_was_forgotten_leaves_nothing_behind_it() -> None:
    tree = Tree()
    ids = numbers(2 * PAGE + 5)
    chain, pages = tree.begin(ids, PAGE)
    tree.cache.clear()
    pages.cover(len(ids))
    tree.cache.publish(chain, pages, ids, len(ids))
    assert len(chain) == 1
    assert tree.end(chain, pages, ids) is None
    assert tree.pool.n_filled == 0
    tree.check()


def test_a_page_that_was_filled_elsewhere_is_found() -> None:
    tree = Tree()
    assert tree.pool.promise(1)
    node = tree.cache.add(None, tuple(numbers(PAGE)), tree.pool.take())
    tree.pool.release_promise(1)
    assert tree.cache.find(None, tuple(numbers(PAGE))) is node
    assert tree.found(numbers(PAGE)) == PAGE


def test_what_is_noted_about_idle_pages_does_not_grow_with_use() -> None:
    tree = Tree(4)
    for _ in range(500):
        tree.leave(numbers(5))
    assert len(tree.cache._idle_leaves) <= 4 * 4 + 1
    assert tree.cache.give_up()
    assert not tree.cache.give_up()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_whatever_comes_and_goes_pages_are_never_lost_nor_in_two_places(data: st.DataObject) -> None:
    tree = Tree(6)
    live: list[tuple[list[int], list[Node], PageList]] = []
    for _ in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(("begin", "begin", "end", "clear", "give up", "session")))
        if action == "begin":
            ids = [data.draw(st.integers(0, 1))] * data.draw(st.integers(1, 70)) + [data.draw(st.integers(0, 2))]
            if tree.pool.n_promised + pages_for(len(ids)) <= 6:
                live.append((ids, *tree.begin(ids)))
        elif action == "end" and live:
            ids, chain, pages = live.pop(data.draw(st.integers(0, len(live) - 1)))
            leaf = tree.end(chain, pages, ids)
            if leaf is not None and data.draw(st.booleans()):
                tree.cache.mark_session(leaf)
        elif action == "clear" and data.draw(st.booleans()):
            tree.cache.clear()
        elif action == "give up":
            tree.cache.give_up()
        own = [page for _, _, pages in live for page in pages.pages[pages.n_shared :]]
        shared = {node.page for _, chain, _ in live for node in chain}
        in_tree = pages_in(tree.cache._root)
        assert len(own) + len(shared | set(in_tree)) == tree.pool.n_filled
        assert not set(own) & (shared | set(in_tree))
        assert len(in_tree) == len(set(in_tree))
        assert len(in_tree) == tree.cache.n_idle + sum(page in shared for page in in_tree)
        assert sorted({*own, *shared, *in_tree, *tree.pool._free}) == list(range(6))
    for ids, chain, pages in live:
        tree.end(chain, pages, ids)
    tree.check()
    while tree.cache.give_up():
        pass
    assert tree.pool.n_filled == 0


def pages_in(node: Node) -> list[int]:
    return [page for child in node.children.values() for page in (child.page, *pages_in(child))]


def test_a_pool_that_shrinks_loses_the_pages_that_were_used_longest_ago_and_none_in_use() -> None:
    tree = Tree(8)
    tree.leave(numbers(2 * PAGE))
    tree.leave(numbers(2 * PAGE, 1000))
    chain, pages = tree.begin(numbers(2 * PAGE, 2000))
    assert tree.found(numbers(2 * PAGE)) == 2 * PAGE  # looked for, not used
    assert tree.pool.retire(4, 0) == 4
    assert (tree.found(numbers(2 * PAGE)), tree.found(numbers(2 * PAGE, 1000))) == (0, 2 * PAGE)
    assert tree.pool.retire(99, 0) == 2
    assert (tree.found(numbers(2 * PAGE, 1000)), tree.found(numbers(2 * PAGE, 2000))) == (0, 2 * PAGE)
    assert not set(pages.pages) & set(tree.pool.retired)
    tree.end(chain, pages, numbers(2 * PAGE, 2000))
    tree.check()
    assert tree.pool.restore(99) == 6
    tree.leave(numbers(8 * PAGE, 3000))
    tree.check()
