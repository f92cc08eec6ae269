"""The engine thread with a background request that gives way: same tokens, honest figures, nothing left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sipd.engine.pass_plan import Sequence
from sipd.engine.request import FinishReason, Priority, Request
from tests.unit.engine.fake_executor import Rig, Sink, rig

N_PAGES = 4


@pytest.fixture(params=[True, False], ids=["cache", "no cache"])
def one(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with rig(n_pages=N_PAGES, has_cache=request.param, draft_tokens=4) as made:
        yield made


def send_and_hold(one: Rig, request: Request) -> None:
    """Runs ten passes, and stands still in the eleventh."""
    one.executor.hold()
    one.engine.submit(request)
    for _ in range(10):
        one.executor.wait_for_pass()
        one.executor.let_go()
    one.executor.wait_for_pass()


def background(one: Rig) -> tuple[Request, Sink]:
    """A request that all pages are promised to, in its eleventh pass."""
    long, sink = one.request(40, 32 * N_PAGES - 40 + 1)
    long.priority, long.speculates = Priority.BACKGROUND, False
    send_and_hold(one, long)
    return long, sink


def test_an_interactive_request_does_not_wait_for_the_end_of_a_long_background_one(one: Rig) -> None:
    long, sink = background(one)
    seen: list[int] = []
    quick, quick_sink = one.request(50, 5, first=500, sink=Sink(on_token=lambda: seen.append(len(sink.ids))))
    one.engine.submit(quick)
    one.executor.free()
    assert quick_sink.reason() is FinishReason.LENGTH
    assert seen == [11] * 5, "the pass under way was its last before it gave way"
    assert sink.reason() is FinishReason.LENGTH
    assert sink.ids == list(range(40, 40 + long.max_tokens))
    assert sink.n_started == 2


def test_the_figures_of_a_request_that_gave_way_are_those_of_its_first_beginning(one: Rig) -> None:
    long, sink = background(one)
    queue_s = long.usage.queue_s
    _, quick_sink = one.submit(3, 5)
    one.executor.free()
    quick_sink.wait()
    usage = sink.wait().usage
    assert (usage.cached_tokens, usage.queue_s, usage.completion_tokens) == (0, queue_s, long.max_tokens)
    assert usage.prefill_passes == 2, "the end of its prompt was computed again"


def test_a_request_that_gave_way_can_be_cancelled_while_it_waits(one: Rig) -> None:
    long, sink = background(one)
    quick, quick_sink = one.request(50, 5, first=500)
    one.engine.submit(quick)
    one.executor.let_go()
    one.executor.wait_for_pass()
    assert one.engine.progress(long).queue_position == 1
    one.engine.cancel(long)
    assert sink.reason() is FinishReason.CANCELLED
    one.executor.free()
    assert quick_sink.reason() is FinishReason.LENGTH


def test_a_request_that_is_cancelled_in_the_moment_it_gives_way_does_not_wait_on(one: Rig) -> None:
    long, sink = background(one)
    give_way = one.engine._scheduler._give_way

    def cancelled_meanwhile(sequence: Sequence) -> None:
        one.engine.cancel(long)
        give_way(sequence)

    one.engine._scheduler._give_way = cancelled_meanwhile
    quick, quick_sink = one.request(50, 5, first=500)
    one.engine.submit(quick)
    one.executor.let_go()
    one.executor.wait_for_pass()
    one.executor.let_go()
    assert sink.reason() is FinishReason.CANCELLED
    one.executor.free()
    assert quick_sink.reason() is FinishReason.LENGTH


def test_what_a_request_that_gave_way_left_in_the_cache_is_not_computed_again() -> None:
    with rig(n_pages=8, has_cache=True, max_active=1) as one:
        long, sink = one.request(70, 40)
        long.priority = Priority.BACKGROUND
        send_and_hold(one, long)
        quick, quick_sink = one.request(3, 2, first=500)
        one.engine.submit(quick)
        one.executor.free()
        assert quick_sink.reason() is FinishReason.LENGTH
        assert sink.reason() is FinishReason.LENGTH
        assert sink.ids == list(range(70, 110))
        assert sum(map(len, one.executor.passes)) == (70 + 39) + (3 + 1), "every position once"
