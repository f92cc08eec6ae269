"""What a request takes over from earlier ones, and what it leaves for later ones.

Owned by the engine thread. Invariant: everything that is taken over holds the keys and values of exactly the tokens
that stand there, computed under the same arithmetic, so that no text depends on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sipd.engine.kv_cache import PageList, PagePool, pages_for
from sipd.engine.pass_plan import Sequence
from sipd.engine.prefix_cache import Match, Node, PrefixCache
from sipd.engine.request import Request
from sipd.engine.sessions import Sessions
from sipd.kernels.binding import PAGE_POSITIONS


@dataclass(frozen=True, slots=True)
class Kept:
    """What a session's turn left in the cache: where it ends, and its pages with their token ids."""

    leaf: Node
    chain: tuple[Node, ...]
    ids: list[int]


@dataclass(slots=True)
class Reuse:
    """The pool and what is kept in it; without a cache nothing is."""

    pool: PagePool
    cache: PrefixCache | None = None
    sessions: Sessions | None = None
    copy_page: Callable[[int, int], None] = field(default=lambda _source, _target: None)
    cached_tokens: int = 0
    restored_tokens: int = 0

    def admit(self, request: Request) -> Sequence | None:
        """The request as a sequence with its pages promised; None when its worst case does not fit now."""
        worst = worst_case_pages(request)
        cache = self.cache if request.uses_prefix_cache else None
        ids = request.prompt_ids
        if request.output_ids:  # it gave way once
            ids = (*ids, *request.output_ids)
        match = Match() if cache is None else cache.match(ids, len(ids) - 1, request.owner)
        n_own = worst - len(match.nodes)
        n_idle = 0 if cache is None else cache.n_idle_of(match.nodes)
        if not self.pool.promise(n_own + n_idle):
            return None
        sequence = Sequence(request, PageList(self.pool, n_own, request.owner))
        if cache is None:
            return sequence
        for node in match.nodes:
            cache.hold(node)
            sequence.chain.append(node)
            sequence.pages.share(node.page)
        request.n_computed = len(match.nodes) * PAGE_POSITIONS
        self._copy_partial(cache, match, sequence)
        usage = request.usage
        if not usage.passes:  # what it finds again of its own was computed at its cost
            # less what it was given when it was admitted before, and gave way before its first pass
            self.cached_tokens += request.n_computed - usage.cached_tokens
            self.restored_tokens -= usage.restored_tokens
            usage.cached_tokens, usage.restored_tokens = request.n_computed, 0
        return sequence

    def _copy_partial(self, cache: PrefixCache, match: Match, sequence: Sequence) -> None:
        """Takes over the head of a page that goes on differently."""
        node = match.partial
        if node is None:
            return
        is_idle = not node.n_users
        if is_idle and not self.pool.promise(1):  # it is held while it is copied
            return
        cache.hold(node)
        sequence.pages.cover(match.n_positions)
        self.copy_page(node.page, sequence.pages.pages[-1])
        cache.let_go((node,))
        sequence.request.n_computed = match.n_positions

    def computed(self, sequence: Sequence) -> None:
        """After a pass: whole pages are there for others too."""
        n_new = sequence.request.n_computed // PAGE_POSITIONS - len(sequence.chain)
        if self.cache is not None and sequence.request.uses_prefix_cache and n_new > 0:
            self.cache.publish(sequence.chain, sequence.pages, sequence.tokens(), sequence.request.n_computed)

    def restored(self, sequence: Sequence, n_positions: int) -> None:
        """The disk has filled a sequence's pages up to `n_positions`, after a fault fewer than were there before."""
        request = sequence.request
        n_positions = max(n_positions, len(sequence.chain) * PAGE_POSITIONS)  # shared pages are never read into
        n_more = n_positions - request.n_computed
        request.n_computed = n_positions
        if not request.usage.passes:
            request.usage.cached_tokens += n_more
            request.usage.restored_tokens += max(0, n_more)
            self.cached_tokens += n_more
            self.restored_tokens += max(0, n_more)
        self.computed(sequence)

    def end(self, sequence: Sequence) -> Kept | None:
        """The sequence has ended: its pages are kept as far as they may be. Returns what of a session was."""
        request, kept = sequence.request, None
        if self.cache is not None and request.uses_prefix_cache:
            self.computed(sequence)  # its last pass may have filled pages
            ids = sequence.tokens()
            leaf = self.cache.keep_tail(sequence.chain, sequence.pages, ids, request.n_computed)
            if request.session and leaf is not None:
                has_tail = not sequence.chain or leaf is not sequence.chain[-1]
                is_whole = not has_tail or len(sequence.chain) * PAGE_POSITIONS + len(leaf.ids) == request.n_computed
                chain = (*sequence.chain, leaf) if has_tail and is_whole else tuple(sequence.chain)
                n_positions = request.n_computed if is_whole else len(chain) * PAGE_POSITIONS
                kept = Kept(leaf, chain, ids[:n_positions])
        self.release(sequence)
        return kept

    def release(self, sequence: Sequence) -> None:
        """Gives back what a sequence holds; what it has published stays."""
        if self.cache is not None:
            self.cache.let_go(sequence.chain)
        sequence.pages.release()
        sequence.chain = []


def worst_case_pages(request: Request) -> int:
    """Pages that a request may need at its end; the last token is sampled, not computed."""
    return pages_for(len(request.prompt_ids) + request.max_tokens - 1)
