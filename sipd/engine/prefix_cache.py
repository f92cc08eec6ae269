"""Keys and values of earlier prompts and replies, kept in pages and found again by the token ids themselves.

A tree: a node is one page, its path from the root the ids of all positions up to its end. Full pages are shared
between live requests (counted); the last, part-filled page of an ended request is copied before it is written on.
Owned by the engine thread. Invariants: a shared page is never written; a page in use is never given up; what is
given up first is the page that was used longest ago, those of sessions last.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from sipd.engine.kv_cache import PageList, PagePool
from sipd.kernels.binding import PAGE_POSITIONS


@dataclass(eq=False, slots=True)
class Node:
    """One page of the tree; `ids` are those of its own positions, fewer than PAGE_POSITIONS at the end of a reply."""

    ids: tuple[int, ...]
    page: int
    parent: Node | None
    owner: str = ""  # who left it: only he may take over a part of it
    children: dict[tuple[int, ...], Node] = field(default_factory=dict)
    n_users: int = 0  # live requests that read it
    n_sessions: int = 0  # sessions that end in it
    last_used: int = 0
    is_gone: bool = False  # no longer in the tree


@dataclass(frozen=True, slots=True)
class Match:
    """What is there of a prompt: whole pages, and the first `n_partial` positions of one more."""

    nodes: tuple[Node, ...] = ()
    partial: Node | None = None
    n_partial: int = 0

    @property
    def n_positions(self) -> int:
        """Positions that need not be computed."""
        return len(self.nodes) * PAGE_POSITIONS + self.n_partial


class PrefixCache:
    """The tree over one pool."""

    def __init__(self, pool: PagePool) -> None:
        self.n_idle = 0  # pages of the tree that no live request reads
        self._pool = pool
        self._root = Node((), -1, None)
        self._clock = itertools.count(1)
        self._idle_leaves: list[tuple[bool, int, int, Node]] = []  # a heap; entries may be outdated
        self._serial = itertools.count()
        pool.give_up = self.give_up

    def match(self, ids: Sequence[int], limit: int, owner: str = "") -> Match:
        """The longest head of `ids` that is there, at most `limit` positions.

        Part of a page is taken over only by its `owner`: anybody else could guess a prompt token by token.
        """
        node = self._root
        nodes: list[Node] = []
        while (at := len(nodes) * PAGE_POSITIONS) + PAGE_POSITIONS <= limit:
            child = node.children.get(tuple(ids[at : at + PAGE_POSITIONS]))
            if child is None:
                break
            nodes.append(child)
            node = child
        wanted = tuple(ids[at : min(at + PAGE_POSITIONS, limit)])
        partial, n_partial = None, 0
        for child in node.children.values():
            n_common = _common(child.ids, wanted) if child.owner == owner else 0
            if n_common > n_partial:
                partial, n_partial = child, n_common
        return Match(tuple(nodes), partial, n_partial)

    def n_idle_of(self, nodes: Sequence[Node]) -> int:
        """How many of `nodes` no live request reads: holding them needs a promise each."""
        return sum(not node.n_users for node in nodes)

    def hold(self, node: Node) -> None:
        """A live request reads it from now on; when it is the first, the caller has the pool's promise for it."""
        if not node.n_users:
            self.n_idle -= 1
        node.n_users += 1

    def let_go(self, chain: Sequence[Node]) -> None:
        """A live request has ended; idle pages may be given up."""
        now = next(self._clock)
        for node in reversed(chain):
            node.n_users -= 1
            node.last_used = now
            if node.n_users:
                continue
            self._pool.release_promise(1)
            if node.is_gone:
                self._pool.give_back(node.page)
            else:
                self.n_idle += 1
                self._offer(node)

    def publish(self, chain: list[Node], pages: PageList, ids: Sequence[int], n_computed: int) -> None:
        """Moves whole pages of the first `n_computed` positions into the tree, and appends them to `chain`."""
        while (len(chain) + 1) * PAGE_POSITIONS <= n_computed:
            parent = chain[-1] if chain else self._root
            if parent.is_gone:
                return
            at = len(chain) * PAGE_POSITIONS
            node = self._adopt(parent, pages, tuple(ids[at : at + PAGE_POSITIONS]))
            if not node.n_users:
                kept = self._pool.promise(1)  # the one that `hand_over` gave back
                assert kept
            self.hold(node)
            chain.append(node)

    def keep_tail(self, chain: Sequence[Node], pages: PageList, ids: Sequence[int], n_computed: int) -> Node | None:
        """Keeps the part-filled last page of a sequence that has ended; returns where its positions end in the tree."""
        parent = chain[-1] if chain else self._root
        at = len(chain) * PAGE_POSITIONS
        tail = tuple(ids[at:n_computed])
        if parent.is_gone or not tail:
            return chain[-1] if chain and not parent.is_gone else None
        for child in parent.children.values():
            if child.ids[: len(tail)] == tail:
                child.last_used = next(self._clock)
                self._offer(child)
                return child
        node = self._adopt(parent, pages, tail)
        self._offer(node)
        return node

    def add(self, parent: Node | None, ids: tuple[int, ...], page: int, owner: str = "") -> Node:
        """Puts a page that was filled elsewhere under `parent` (None: at the root); the tree owns it from now on."""
        parent = parent or self._root
        assert 0 < len(ids) <= PAGE_POSITIONS, "a node is one page"
        node = Node(ids, page, parent, owner, last_used=next(self._clock))
        for key, child in list(parent.children.items()):  # shorter ones say nothing more
            if len(key) < len(ids) and ids[: len(key)] == key and not child.n_users and not child.n_sessions:
                self._remove(child)
        parent.children[ids] = node
        self.n_idle += 1
        return node

    def find(self, parent: Node | None, ids: tuple[int, ...]) -> Node | None:
        """The page with exactly these ids under `parent` (None: at the root)."""
        return (parent or self._root).children.get(ids)

    def mark_session(self, node: Node) -> None:
        """Its pages are given up only when all others are."""
        node.n_sessions += 1
        self._offer(node)

    def unmark_session(self, node: Node) -> None:
        """One session less ends in it."""
        node.n_sessions -= 1
        self._offer(node)

    def give_up(self) -> bool:
        """Frees the idle page that was used longest ago; False when none is idle."""
        while self._idle_leaves:
            is_kept, last_used, _, node = heapq.heappop(self._idle_leaves)
            if not self._is_idle_leaf(node) or last_used != node.last_used or is_kept != bool(node.n_sessions):
                continue
            self._remove(node)
            return True
        return False

    def clear(self) -> None:
        """Forgets everything: what live requests read goes when they end."""
        nodes = list(self._root.children.values())
        self._root.children = {}
        self._idle_leaves = []
        while nodes:
            node = nodes.pop()
            nodes.extend(node.children.values())
            node.children = {}
            node.is_gone = True
            if not node.n_users:
                self.n_idle -= 1
                self._pool.give_back(node.page)

    def _adopt(self, parent: Node, pages: PageList, ids: tuple[int, ...]) -> Node:
        """The child with `ids`: the one that is there, whose page replaces the sequence's own, or a new one."""
        node = parent.children.get(ids)
        if node is None:
            return self.add(parent, ids, pages.hand_over(pages.pages[pages.n_shared]), pages.owner)
        self._pool.give_back(pages.hand_over(node.page))
        return node

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.ids]
        node.is_gone = True
        self.n_idle -= 1
        self._pool.give_back(node.page)
        self._offer(parent)

    def _is_idle_leaf(self, node: Node) -> bool:
        return not (node.is_gone or node.n_users or node.children) and node.parent is not None

    def _offer(self, node: Node) -> None:
        """Lets a page be given up, if it can be now."""
        if not self._is_idle_leaf(node):
            return
        heapq.heappush(self._idle_leaves, (bool(node.n_sessions), node.last_used, next(self._serial), node))
        if len(self._idle_leaves) > 4 * self._pool.n_pages:  # outdated entries are only met when pages are given up
            nodes = {entry[3] for entry in self._idle_leaves if self._is_idle_leaf(entry[3])}
            self._idle_leaves = [(bool(n.n_sessions), n.last_used, next(self._serial), n) for n in nodes]
            heapq.heapify(self._idle_leaves)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    n = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        n += 1
    return n
