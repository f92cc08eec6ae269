"""What a request takes over and leaves: positions, promises, counts, and sessions."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from sipd.engine.kv_cache import PagePool
from sipd.engine.pass_plan import Sequence
from sipd.engine.prefix_cache import PrefixCache
from sipd.engine.request import Request
from sipd.engine.reuse import Kept, Reuse
from sipd.engine.sampling import SamplingOptions
from sipd.engine.sessions import Sessions
from sipd.kernels.binding import PAGE_POSITIONS as PAGE
from tests.unit.engine.fake_executor import Sink


def request(n_prompt: int, max_tokens: int = 1, first: int = 0, session: str = "") -> Request:
    ids = tuple(range(first, first + n_prompt))
    return Request("r", ids, max_tokens, SamplingOptions(), Sink(), session=session)


@dataclass
class Kit:
    """A pool with a cache; `copies` are (source, target) pages."""

    n_pages: int = 16
    has_cache: bool = True
    copies: list[tuple[int, int]] = field(default_factory=list)
    reuse: Reuse = field(init=False)

    def __post_init__(self) -> None:
        pool = PagePool(self.n_pages, 1)
        cache = PrefixCache(pool) if self.has_cache else None
        sessions = None if cache is None else Sessions(cache, 4, 60.0)
        self.reuse = Reuse(pool, cache, sessions, lambda source, target: self.copies.append((source, target)))

    def admit(self, one: Request) -> Sequence:
        sequence = self.reuse.admit(one)
        assert sequence is not None
        return sequence

    def compute(self, sequence: Sequence, n_positions: int | None = None) -> None:
        """What passes up to `n_positions` do; None: all tokens."""
        wanted = sequence.n_tokens if n_positions is None else n_positions
        sequence.pages.cover(wanted)
        sequence.request.n_computed = wanted
        self.reuse.computed(sequence)

    def run(self, one: Request) -> Kept | None:
        sequence = self.admit(one)
        self.compute(sequence)
        return self.reuse.end(sequence)

    def check(self) -> None:
        assert self.reuse.pool.n_promised == 0
        assert self.reuse.pool.n_filled == (0 if self.reuse.cache is None else self.reuse.cache.n_idle)


def test_without_a_cache_nothing_is_taken_over_or_left() -> None:
    kit = Kit(has_cache=False)
    assert kit.run(request(70)) is None
    assert kit.admit(request(70)).request.n_computed == 0


def test_the_same_prompt_again_computes_its_last_token_alone() -> None:
    kit = Kit()
    kit.run(request(70))
    sequence = kit.admit(request(70))
    assert (sequence.request.n_computed, sequence.n_left) == (69, 1)
    assert sequence.request.usage.cached_tokens == kit.reuse.cached_tokens == 69
    kit.compute(sequence)
    kit.reuse.end(sequence)
    kit.check()


def test_whole_pages_are_shared_and_a_part_is_copied_to_a_page_of_its_own() -> None:
    kit = Kit()
    kit.run(request(2 * PAGE + 9))
    sequence = kit.admit(request(2 * PAGE + 9, 5))
    assert sequence.pages.n_shared == 2
    assert sequence.pages.pages[:2] == [node.page for node in sequence.chain]
    ((source, target),) = kit.copies
    assert target == sequence.pages.pages[2] != source
    kit.reuse.release(sequence)
    kit.check()


def test_a_prompt_of_whole_pages_never_shares_the_page_of_its_last_token() -> None:
    kit = Kit()
    kit.run(request(2 * PAGE))
    sequence = kit.admit(request(2 * PAGE))
    assert (sequence.pages.n_shared, sequence.request.n_computed) == (1, 2 * PAGE - 1)
    kit.reuse.release(sequence)
    kit.check()


def test_a_request_that_has_switched_it_off_neither_takes_nor_leaves() -> None:
    kit = Kit()
    private = request(70)
    private.uses_prefix_cache = False
    kit.run(private)
    kit.check()
    assert kit.reuse.pool.n_filled == 0
    kit.run(request(70))
    again = request(70)
    again.uses_prefix_cache = False
    sequence = kit.admit(again)
    assert (sequence.request.n_computed, sequence.pages.n_shared) == (0, 0)
    kit.compute(sequence)
    assert sequence.chain == []
    kit.reuse.end(sequence)
    kit.check()


def test_a_request_that_does_not_fit_now_takes_nothing() -> None:
    kit = Kit(4)
    kit.run(request(40))
    first = kit.admit(request(3 * PAGE, 1, 500))
    assert kit.reuse.admit(request(40, 30)) is None
    assert kit.reuse.pool.n_promised == 3
    kit.reuse.release(first)
    kit.check()


def test_shared_pages_are_promised_once_for_all_who_read_them() -> None:
    kit = Kit(5)
    kit.run(request(3 * PAGE))
    one, two = kit.admit(request(3 * PAGE + 1)), kit.admit(request(3 * PAGE + 1))
    assert kit.reuse.pool.n_promised == 5
    assert one.chain == two.chain
    kit.reuse.release(one)
    assert kit.reuse.pool.n_promised == 4
    kit.reuse.release(two)
    kit.check()


def test_a_part_is_computed_when_no_page_is_left_to_hold_while_it_is_copied() -> None:
    kit = Kit(2)
    kit.run(request(20))
    sequence = kit.admit(request(20, 40))
    assert (sequence.request.n_computed, kit.copies) == (0, [])
    kit.reuse.release(sequence)
    kit.check()


def test_a_sequence_that_ends_in_its_first_pass_leaves_all_its_pages() -> None:
    kit = Kit()
    sequence = kit.admit(request(3 * PAGE + 5))
    sequence.pages.cover(3 * PAGE + 5)
    sequence.request.n_computed = 3 * PAGE + 5  # and nobody told `computed`
    kit.reuse.end(sequence)
    kit.check()
    assert kit.admit(request(3 * PAGE + 5)).request.n_computed == 3 * PAGE + 4


def test_a_cancelled_prompt_leaves_what_was_computed() -> None:
    kit = Kit()
    sequence = kit.admit(request(100))
    kit.compute(sequence, 50)
    kit.reuse.end(sequence)
    kit.check()
    assert kit.admit(request(100)).request.n_computed == 50


def test_what_came_from_disk_is_counted_and_shared() -> None:
    kit = Kit()
    sequence = kit.admit(request(100))
    sequence.pages.cover(80)
    kit.reuse.restored(sequence, 80)
    usage = sequence.request.usage
    assert (usage.cached_tokens, usage.restored_tokens, sequence.request.n_computed) == (80, 80, 80)
    assert (kit.reuse.cached_tokens, kit.reuse.restored_tokens) == (80, 80)
    assert len(sequence.chain) == 2
    kit.reuse.release(sequence)
    kit.check()


@pytest.mark.parametrize("n_positions", [0, PAGE])
def test_a_failed_read_never_takes_back_shared_pages_nor_counts_below_nothing(n_positions: int) -> None:
    kit = Kit()
    kit.run(request(PAGE + 9))
    sequence = kit.admit(request(100))
    assert sequence.request.n_computed == PAGE + 9
    kit.reuse.restored(sequence, n_positions)
    usage = sequence.request.usage
    assert sequence.request.n_computed == PAGE, "the copied part was overwritten, the shared page was not"
    assert (usage.cached_tokens, usage.restored_tokens) == (PAGE, 0)
    assert kit.reuse.restored_tokens == 0
    kit.reuse.release(sequence)
    kit.check()


@pytest.mark.parametrize("n", [5, PAGE, PAGE + 5, 2 * PAGE])
def test_a_turn_of_a_session_tells_its_pages_and_their_ids(n: int) -> None:
    kept = Kit().run(request(n, session="a/b"))
    assert kept is not None
    assert kept.ids == list(range(n))
    assert len(kept.chain) == -(-n // PAGE)
    assert kept.leaf is kept.chain[-1]
    assert [i for node in kept.chain for i in node.ids] == kept.ids


def test_a_turn_that_another_went_beyond_keeps_its_whole_pages_alone() -> None:
    kit = Kit()
    kit.run(request(PAGE + 20))
    kept = kit.run(request(PAGE + 5, session="a/b"))
    assert kept is not None
    assert (len(kept.chain), kept.ids) == (1, list(range(PAGE)))
    assert len(kept.leaf.ids) == 20


def test_a_request_without_a_session_keeps_none() -> None:
    assert Kit().run(request(50)) is None
