"""Who takes part in the next pass: order of arrival, the cap on rows, and the worst case in pages."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sipd.engine.kv_cache import PagePool
from sipd.engine.pace import Pace
from sipd.engine.pass_plan import Sequence
from sipd.engine.prefix_cache import PrefixCache
from sipd.engine.request import Priority, Request
from sipd.engine.reuse import Reuse, worst_case_pages
from sipd.engine.sampling import SamplingOptions
from sipd.engine.scheduler import Scheduler
from tests.unit.engine.fake_executor import Sink


def request(n_prompt: int, max_tokens: int = 1) -> Request:
    return Request("r", tuple(range(n_prompt)), max_tokens, SamplingOptions(), Sink())


def scheduler(*requests: Request, n_pages: int = 64, max_rows: int = 16, max_active: int = 4) -> Scheduler:
    made = Scheduler(Reuse(PagePool(n_pages, 1)), Pace(max_rows, max_rows), max_rows, max_active, max_rows)
    made.waiting.extend(requests)
    return made


def end(made: Scheduler, sequence: Sequence) -> None:
    """What the engine does with a request that has ended."""
    made.remove(sequence)
    made._reuse.end(sequence)


def complete(sequences: list[Sequence]) -> None:
    """What the engine does after a pass: rows are computed, and whoever had logits gets a token."""
    for sequence in sequences:
        sequence.request.n_computed += sequence.n_rows
        if sequence.n_left == 0:
            sequence.request.output_ids.append(7)


def test_requests_are_admitted_in_the_order_of_arrival() -> None:
    requests = [request(3) for _ in range(6)]
    made = scheduler(*requests)
    assert [sequence.request for sequence in made.admit()] == requests[:4]
    assert list(made.waiting) == requests[4:]
    assert made.n_free_places == 0


def test_a_small_request_does_not_overtake_a_large_one_that_waits_for_pages() -> None:
    large, small = request(60, 5), request(3)
    made = scheduler(request(60, 5), large, small, n_pages=3)
    assert len(made.admit()) == 1
    assert list(made.waiting) == [large, small]


def test_a_request_is_admitted_when_those_before_it_gave_their_pages_back() -> None:
    made = scheduler(request(60, 5), request(60, 5), n_pages=3)
    (first,) = made.admit()
    assert made.admit() == []
    end(made, first)
    assert len(made.admit()) == 1


@pytest.mark.parametrize(
    ("n_prompt", "max_tokens", "n_pages"), [(1, 1, 1), (32, 1, 1), (32, 2, 2), (31, 2, 1), (33, 1, 2), (64, 65, 4)]
)
def test_the_worst_case_leaves_out_the_last_token_which_is_never_computed(
    n_prompt: int, max_tokens: int, n_pages: int
) -> None:
    assert worst_case_pages(request(n_prompt, max_tokens)) == n_pages


def test_a_decoder_always_has_its_row() -> None:
    made = scheduler(request(1), request(1), request(100), max_rows=4)
    made.admit()
    for _ in range(5):
        plan = made.plan_pass()
        rows = [sum(row[2] == index for row in plan.rows) for index in range(3)]
        assert rows == [1, 1, 2]
        complete(plan.sequences)


def test_a_prompt_before_decoders_leaves_them_their_rows() -> None:
    made = scheduler(request(100), request(1), request(1), max_rows=4)
    made.admit()
    plan = made.plan_pass()
    assert [sequence.n_rows for sequence in plan.sequences] == [2, 1, 1]


def test_prompt_rows_go_to_the_first_come_first() -> None:
    made = scheduler(request(10), request(10), request(10), max_rows=16)
    made.admit()
    plan = made.plan_pass()
    assert [sequence.n_rows for sequence in plan.sequences] == [10, 6]
    complete(plan.sequences)
    plan = made.plan_pass()
    assert [sequence.n_rows for sequence in plan.sequences] == [1, 4, 10]


def test_a_prompt_takes_as_many_passes_as_the_cap_makes_necessary() -> None:
    made = scheduler(request(50), max_rows=16)
    made.admit()
    n_rows = []
    while not made.active[0].request.output_ids:
        plan = made.plan_pass()
        n_rows.append(len(plan.rows))
        complete(plan.sequences)
    assert n_rows == [16, 16, 16, 2]


def test_only_the_last_row_of_a_sequence_wants_logits() -> None:
    made = scheduler(request(3), request(20), request(2), max_rows=16)
    made.admit()
    plan = made.plan_pass()
    assert [(sequence.request.prompt_ids, sequence.n_rows) for sequence, _ in plan.sampling] == [
        ((0, 1, 2), 3),
    ]
    assert [row[3] for row in plan.rows] == [-1, -1, 0, *[-1] * 13]


def test_rows_carry_token_position_and_sequence() -> None:
    made = scheduler(request(2), request(3))
    made.admit()
    plan = made.plan_pass()
    assert plan.rows == [(0, 0, 0, -1), (1, 1, 0, 0), (0, 0, 1, -1), (1, 1, 1, -1), (2, 2, 1, 1)]
    complete(plan.sequences)
    assert made.plan_pass().rows == [(7, 2, 0, 0), (7, 3, 1, 1)]


def test_no_more_requests_are_active_than_a_pass_has_rows() -> None:
    made = scheduler(*(request(1) for _ in range(4)), max_rows=2, max_active=4)
    assert len(made.admit()) == 2


def test_a_removed_sequence_gives_its_pages_back() -> None:
    made = scheduler(request(40), n_pages=2)
    (sequence,) = made.admit()
    made.plan_pass()
    end(made, sequence)
    assert made.active == []
    pool = made._reuse.pool
    assert (pool.n_filled, pool.n_promised) == (0, 0)


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(st.tuples(st.integers(1, 70), st.integers(1, 40)), min_size=1, max_size=12),
    n_pages=st.integers(4, 12),
    max_rows=st.integers(1, 40),
    max_active=st.integers(1, 6),
)
def test_every_request_ends_and_no_pass_breaks_a_rule(
    shapes: list[tuple[int, int]], n_pages: int, max_rows: int, max_active: int
) -> None:
    requests = [request(*shape) for shape in shapes]
    made = scheduler(*requests, n_pages=n_pages, max_rows=max_rows, max_active=max_active)
    ended: list[Request] = []
    for _ in range(3000):
        made.admit()
        if not made.active:
            break
        plan = made.plan_pass()
        assert 0 < len(plan.rows) <= max_rows
        decoders = [sequence for sequence in made.active if sequence.n_left == 1]
        assert all(sequence.n_rows == 1 for sequence in decoders)
        held = [page for sequence in made.active for page in sequence.pages.pages]
        assert len(held) == len(set(held)) <= n_pages
        complete(plan.sequences)
        for sequence in list(made.active):
            if len(sequence.request.output_ids) == sequence.request.max_tokens:
                end(made, sequence)
                ended.append(sequence.request)
    assert len(ended) == len(requests)
    assert made._reuse.pool.n_filled == 0


def test_a_sequence_whose_reader_is_behind_sits_the_pass_out_and_keeps_its_pages() -> None:
    slow, quick = request(3, 5), request(3, 5)
    is_behind = False
    slow.is_reader_behind = lambda: is_behind
    made = scheduler(slow, quick)
    made.admit()
    is_behind = True
    assert [sequence.request for sequence in made.plan_pass().sequences] == [quick]
    is_behind = False
    assert [sequence.request for sequence in made.plan_pass().sequences] == [slow, quick]


def test_a_pass_has_no_rows_when_every_reader_is_behind() -> None:
    slow = request(3, 5)
    made = scheduler(slow)
    made.admit()
    slow.is_reader_behind = lambda: True
    assert made.plan_pass().rows == []


def from_client(client: str, n_prompt: int = 3, priority: Priority = Priority.INTERACTIVE) -> Request:
    made = request(n_prompt, 5)
    made.client, made.priority = client, priority
    return made


def test_a_client_with_ten_requests_does_not_starve_one_with_one() -> None:
    many, one = [from_client("many") for _ in range(10)], from_client("one")
    made = scheduler(*many, one, max_active=3)
    assert [sequence.request for sequence in made.admit()] == [many[0], one, many[1]]


def test_interactive_requests_go_before_background_ones() -> None:
    late, first = from_client("b"), from_client("a", priority=Priority.BACKGROUND)
    made = scheduler(first, late, max_active=1)
    assert [made.position(late), made.position(first)] == [1, 2]
    assert [sequence.request for sequence in made.admit()] == [late]
    assert made.position(late) == 0


def test_background_requests_leave_the_last_place_to_interactive_ones() -> None:
    flood = [from_client("a", priority=Priority.BACKGROUND) for _ in range(5)]
    made = scheduler(*flood, max_active=3)
    assert [sequence.request for sequence in made.admit()] == flood[:2]
    late = from_client("b")
    made.waiting.append(late)
    assert [sequence.request for sequence in made.admit()] == [late]


def test_a_single_place_is_for_everybody() -> None:
    made = scheduler(from_client("a", priority=Priority.BACKGROUND), max_active=1)
    assert len(made.admit()) == 1


def test_clients_take_turns_with_prompt_rows() -> None:
    made = scheduler(from_client("a", 20), from_client("a", 20), from_client("b", 20), max_rows=40)
    made.admit()
    plan = made.plan_pass()
    assert [(sequence.request.client, sequence.n_rows) for sequence in plan.sequences] == [("a", 20), ("b", 20)]


def test_prompt_rows_go_to_interactive_requests_first() -> None:
    made = scheduler(from_client("a", 20, Priority.BACKGROUND), from_client("b", 20), max_rows=30)
    made.admit()
    assert [(s.request.client, s.n_rows) for s in made.plan_pass().sequences] == [("b", 20), ("a", 10)]


def test_a_prompt_gets_all_rows_while_nobody_decodes_and_the_cap_otherwise() -> None:
    made = scheduler(request(3, 9), max_rows=64)
    made._pace = Pace(8, 64)
    made.admit()
    complete(made.plan_pass().sequences)
    made.waiting.append(request(50))
    made.admit()
    assert [s.n_rows for s in made.plan_pass().sequences] == [1, 7]
    end(made, made.active[0])
    assert [s.n_rows for s in made.plan_pass().sequences] == [50]


def test_drafts_are_rows_with_logits_of_their_own() -> None:
    made = scheduler(request(2, 9), request(3, 9))
    made.admit()
    complete(made.plan_pass().sequences)

    def draft(decoders: list[Sequence], n_rows: int) -> None:
        assert n_rows == 14
        decoders[0].drafts = (50, 51)

    plan = made.plan_pass(draft)
    assert plan.rows == [(7, 2, 0, 0), (50, 3, 0, 1), (51, 4, 0, 2), (7, 3, 1, 3)]
    assert [(s.request, first) for s, first in plan.sampling] == [
        (made.active[0].request, 0),
        (made.active[1].request, 3),
    ]
    assert plan.n_logits == 4
    assert made.plan_pass().rows == [(7, 2, 0, 0), (7, 3, 1, 1)], "drafts are for one pass"


def test_a_long_background_request_gives_its_pages_to_an_interactive_one_and_begins_again_after_it() -> None:
    long = from_client("a", priority=Priority.BACKGROUND)
    long.max_tokens = 126  # all four pages
    made = scheduler(long, n_pages=4)
    made.admit()
    for _ in range(40):
        complete(made.plan_pass().sequences)
    late = from_client("b", 40)
    made.waiting.append(late)
    (sequence,) = made.admit()
    assert sequence.request is late
    assert (made.waiting, long.n_computed, len(long.output_ids)) == ([long], 0, 40)
    assert made.admit() == []
    end(made, sequence)
    (again,) = made.admit()
    assert again.request is long
    assert [row[:2] for row in made.plan_pass().rows[:4]] == [(0, 0), (1, 1), (2, 2), (7, 3)]


def test_a_single_place_is_given_up_for_an_interactive_request() -> None:
    slow, late = from_client("a", priority=Priority.BACKGROUND), from_client("b")
    made = scheduler(slow, max_active=1)
    made.admit()
    made.waiting.append(late)
    assert [sequence.request for sequence in made.admit()] == [late]


def test_nobody_gives_way_in_vain() -> None:
    slow, first, large = from_client("a", priority=Priority.BACKGROUND), from_client("b", 60), from_client("c", 90)
    made = scheduler(first, slow, n_pages=4)
    made.admit()
    made.waiting.append(large)
    assert made.admit() == []
    assert [sequence.request for sequence in made.active] == [first, slow]


def test_pages_that_others_read_too_are_nothing_to_give_way_for() -> None:
    reuse = Reuse(pool := PagePool(6, 1), PrefixCache(pool))
    made = Scheduler(reuse, Pace(256, 256), 256, 4, 256)
    made.waiting.append(request(130))
    (first,) = made.admit()
    first.pages.cover(129)
    first.n_rows = 129
    complete([first])
    reuse.computed(first)
    slow = request(130)
    slow.priority = Priority.BACKGROUND
    made.waiting.append(slow)
    (second,) = made.admit()
    assert (len(second.chain), pool.n_promised) == (4, 6)
    made.waiting.append(request(60))  # two pages: one would come free
    assert made.admit() == []
    assert [sequence.request for sequence in made.active] == [first.request, slow]


def test_a_request_whose_reader_is_stuck_gives_way_to_anybody_and_waits_for_its_reader() -> None:
    made = scheduler(stuck := request(40, 20), other := request(4, 20), max_active=2)
    is_behind = False
    stuck.is_reader_behind = lambda: is_behind
    first, _ = made.admit()
    is_behind = True
    late = request(3)
    late.priority = Priority.BACKGROUND
    made.waiting.append(late)
    assert made.admit() == [], "behind for a moment is not stuck"
    first.is_stuck = True
    made.waiting.append(quick := request(3))
    assert [sequence.request for sequence in made.admit()] == [quick]
    assert [sequence.request for sequence in made.active] == [other, quick]
    end(made, made.active[1])
    end(made, made.active[0])
    assert [sequence.request for sequence in made.admit()] == [late], "the reader is still behind"
    is_behind = False
    assert [sequence.request for sequence in made.admit()] == [stuck]


def test_stuck_requests_give_way_before_background_ones() -> None:
    slow, stuck = from_client("a", priority=Priority.BACKGROUND), from_client("b")
    made = scheduler(stuck, slow, max_active=3)
    made.admit()
    made.active[0].is_stuck = True
    stuck.is_reader_behind = lambda: True
    made.waiting += [from_client("c"), from_client("d")]
    made.admit()
    assert slow in [sequence.request for sequence in made.active]
    assert made.waiting == [stuck]


def test_the_background_request_that_began_last_gives_way_first_and_interactive_ones_never_do() -> None:
    one, two = (from_client(name, priority=Priority.BACKGROUND) for name in "ab")
    first, late = from_client("c", 60), from_client("d", 20)
    made = scheduler(first, one, two, n_pages=4)
    made.admit()
    made.waiting.append(late)
    assert [sequence.request for sequence in made.admit()] == [late]
    assert [sequence.request for sequence in made.active] == [first, one, late]
    made.waiting.append(from_client("e", priority=Priority.BACKGROUND))
    assert made.admit() == []


def test_a_background_request_that_gave_way_is_before_those_that_came_after_it() -> None:
    slow, next_one = (from_client("a", priority=Priority.BACKGROUND) for _ in range(2))
    made = scheduler(slow, next_one, max_active=1)
    made.admit()
    made.waiting.append(late := from_client("b"))
    made.admit()
    assert [made.position(slow), made.position(next_one), made.position(late)] == [1, 2, 0]
