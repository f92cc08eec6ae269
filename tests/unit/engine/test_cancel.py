"""Cancels and deadlines: in the queue, in a pass, twice, at the very end, and what they leave alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from sipd.engine.request import FinishReason, Request
from sipd.errors import Cancelled, DeadlineExceeded
from tests.unit.engine.fake_executor import DEADLINE_S, Rig, Sink, rig


@pytest.fixture
def one() -> Iterator[Rig]:
    with rig() as made:
        yield made


def test_a_queued_request_that_is_cancelled_ends_at_once_and_costs_nothing() -> None:
    with rig(max_active=1) as one:
        one.executor.hold()
        one.submit()
        one.executor.wait_for_pass()
        request, sink = one.submit()
        one.engine.cancel(request)
        outcome = sink.outcomes.get_nowait()
        assert outcome.reason is FinishReason.CANCELLED
        assert isinstance(outcome.error, Cancelled)
        assert (outcome.usage.passes, sink.n_started) == (0, 0)


def test_a_cancel_ends_the_pass_under_way_when_nobody_else_is_in_it(one: Rig) -> None:
    one.executor.hold()
    request, sink = one.submit()
    one.executor.wait_for_pass()
    one.engine.cancel(request)
    outcome = sink.wait()
    assert outcome.reason is FinishReason.CANCELLED
    assert sink.ids == []
    assert outcome.usage.streamed_bytes == 0
    one.executor.free()
    assert one.submit()[1].reason() is FinishReason.LENGTH


def test_a_cancel_leaves_the_others_of_the_pass_alone(one: Rig) -> None:
    one.executor.hold()
    first, first_sink = one.submit(3, 6)
    one.executor.wait_for_pass()
    _, second_sink = one.submit(3, 6)
    one.executor.let_go()
    one.executor.wait_for_pass()
    one.engine.cancel(first)
    assert not one.executor.control.cancel
    one.executor.free()
    assert first_sink.reason() is FinishReason.CANCELLED
    assert second_sink.reason() is FinishReason.LENGTH
    assert second_sink.ids == list(range(3, 9))


def test_the_pass_ends_early_once_all_of_it_are_cancelled(one: Rig) -> None:
    one.executor.hold()
    requests = [one.submit(3, 6)]
    one.executor.wait_for_pass()
    requests.append(one.submit(3, 6))
    one.executor.let_go()
    assert len({row[2] for row in one.executor.wait_for_pass()}) == 2
    for request, _ in requests:
        one.engine.cancel(request)
    assert [sink.reason() for _, sink in requests] == [FinishReason.CANCELLED] * 2


def shared_pass(one: Rig, n_prompt: int = 40) -> tuple[Request, Sink, Sink]:
    """Holds a pass in which one request decodes and another's prompt is computed; the latter and both sinks."""
    one.executor.hold()
    _, decoding_sink = one.submit(3, 6)
    one.executor.wait_for_pass()
    prompt, prompt_sink = one.request(n_prompt, 6, first=100)
    one.engine.submit(prompt)
    one.executor.let_go()
    assert len({row[2] for row in one.executor.wait_for_pass()}) == 2
    return prompt, prompt_sink, decoding_sink


def cached_tokens(one: Rig, n_prompt: int = 40) -> int:
    """How much of the other prompt of `shared_pass` is there for a newcomer."""
    request, sink = one.request(n_prompt, 1, first=100)
    one.engine.submit(request)
    return sink.wait().usage.cached_tokens


def test_a_cancelled_request_leaves_a_shared_pass_at_the_next_layer_and_the_other_goes_on(one: Rig) -> None:
    request, sink, decoding_sink = shared_pass(one)
    one.engine.cancel(request)
    assert not one.executor.control.cancel
    one.executor.let_go_in_mid_pass()
    assert one.executor.control.dropped(2) == {1}
    one.executor.let_go()
    outcome = sink.wait()
    assert (outcome.reason, outcome.usage.passes, sink.ids) == (FinishReason.CANCELLED, 1, [])
    assert request.n_computed == 0
    one.executor.free()
    assert decoding_sink.reason() is FinishReason.LENGTH
    assert decoding_sink.ids == list(range(3, 9))


def test_a_second_cancel_does_not_hide_that_a_request_has_left_the_pass(one: Rig) -> None:
    request, sink, _ = shared_pass(one)
    one.engine.cancel(request)
    one.executor.let_go_in_mid_pass()
    one.engine.cancel(request)
    assert one.executor.control.dropped(2) == {1}
    one.executor.free()
    assert sink.reason() is FinishReason.CANCELLED
    assert request.n_computed == 0


def test_keys_of_a_prompt_that_left_its_pass_are_not_shared() -> None:
    with rig(has_cache=True) as one:
        request, sink, _ = shared_pass(one)
        one.engine.cancel(request)
        one.executor.let_go_in_mid_pass()
        one.executor.free()
        assert sink.reason() is FinishReason.CANCELLED
        assert cached_tokens(one) == 0


def test_keys_of_a_prompt_that_was_cancelled_too_late_to_leave_are_shared() -> None:
    with rig(has_cache=True) as one:
        request, sink, _ = shared_pass(one)
        one.engine.cancel(request)
        one.executor.free()
        assert sink.reason() is FinishReason.CANCELLED
        assert cached_tokens(one) > 0


def test_who_takes_the_place_of_a_dropped_request_in_the_next_pass_is_kept(one: Rig) -> None:
    request, sink, decoding_sink = shared_pass(one)
    one.engine.cancel(request)
    one.executor.let_go_in_mid_pass()
    one.executor.let_go()
    assert sink.reason() is FinishReason.CANCELLED
    one.executor.wait_for_pass()
    _, next_sink = one.submit(3, 2)
    one.executor.let_go()
    assert len({row[2] for row in one.executor.wait_for_pass()}) == 2
    one.executor.let_go_in_mid_pass()
    one.executor.free()
    outcome = next_sink.wait()
    assert (outcome.reason, outcome.usage.passes) == (FinishReason.LENGTH, 2)
    assert decoding_sink.reason() is FinishReason.LENGTH


def test_a_cancel_for_a_request_that_waits_leaves_the_pass_alone(one: Rig) -> None:
    one.executor.hold()
    _, sink = one.submit(3, 2)
    one.executor.wait_for_pass()
    waiting, waiting_sink = one.submit()
    one.engine.cancel(waiting)
    assert waiting_sink.reason() is FinishReason.CANCELLED
    one.executor.free()
    assert sink.reason() is FinishReason.LENGTH


def test_a_second_cancel_does_nothing(one: Rig) -> None:
    one.executor.hold()
    request, sink = one.submit()
    one.executor.wait_for_pass()
    one.engine.cancel(request)
    one.engine.cancel(request)
    assert sink.reason() is FinishReason.CANCELLED
    one.engine.cancel(request)
    assert sink.outcomes.empty()


def test_a_cancel_at_the_last_token_ends_a_request_once_200_times(one: Rig) -> None:
    for _ in range(200):
        is_last = threading.Event()
        sink = Sink(on_token=is_last.set)
        request, _ = one.submit(2, 1, sink=sink)
        assert is_last.wait(DEADLINE_S)
        one.engine.cancel(request)
        assert sink.reason() in {FinishReason.LENGTH, FinishReason.CANCELLED}
        one.engine.cancel(request)
        assert sink.outcomes.empty()
    assert one.engine.status().is_alive
    assert one.submit()[1].reason() is FinishReason.LENGTH


def test_a_cancel_from_within_the_sink_ends_the_request_once(one: Rig) -> None:
    sink = Sink()
    request, _ = one.request(3, 50, sink=sink)
    sink._on_token = lambda: one.engine.cancel(request)
    one.engine.submit(request)
    assert sink.reason() is FinishReason.CANCELLED
    assert sink.ids == [3]
    assert sink.outcomes.empty()


def test_a_deadline_that_has_passed_in_the_queue_ends_the_request_without_a_pass() -> None:
    with rig(max_active=1) as one:
        one.executor.hold()
        _, first = one.submit(3, 2)
        one.executor.wait_for_pass()
        request, sink = one.request(deadline=time.monotonic() - 1)
        one.engine.submit(request)
        one.executor.free()
        outcome = sink.wait()
        assert outcome.reason is FinishReason.DEADLINE
        assert isinstance(outcome.error, DeadlineExceeded)
        assert outcome.usage.passes == 0
        assert first.reason() is FinishReason.LENGTH


def test_a_deadline_that_passes_in_a_pass_ends_the_request_after_it(one: Rig) -> None:
    one.executor.hold()
    request, sink = one.request(3, 100)
    one.engine.submit(request)
    one.executor.wait_for_pass()
    request.deadline = time.monotonic()
    one.executor.let_go()
    outcome = sink.wait()
    assert outcome.reason is FinishReason.DEADLINE
    assert outcome.usage.passes == 1


def test_a_cancel_after_the_deadline_is_told_as_the_deadline(one: Rig) -> None:
    one.executor.hold()
    request, sink = one.request(3, 100)
    one.engine.submit(request)
    one.executor.wait_for_pass()
    request.deadline = time.monotonic()
    one.engine.cancel(request)
    assert sink.reason() is FinishReason.DEADLINE


def test_a_reader_that_stays_behind_gives_its_place_up_to_those_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sipd.engine.unwanted.MAX_PARKED_S", 0.0)
    with rig(max_active=1) as one:
        stalled, stalled_sink = one.request(3, 4)
        stalled.is_reader_behind = lambda: stalled_sink.n_started > 0
        one.engine.submit(stalled)
        _, next_sink = one.submit()
        outcome = stalled_sink.wait()
        assert (outcome.reason, outcome.usage.passes) == (FinishReason.CANCELLED, 0)
        assert "behind" in str(outcome.error)
        assert next_sink.reason() is FinishReason.LENGTH
