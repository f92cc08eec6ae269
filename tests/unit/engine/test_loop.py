"""The engine thread: what requests get, how they end, who is refused, and what a fault costs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from sipd.engine import loop
from sipd.engine.loop import MAX_FAILED_PASSES
from sipd.engine.request import FinishReason, Priority
from sipd.errors import (
    DataLoss,
    Draining,
    EngineFault,
    InvalidRequest,
    OverBudget,
    Overloaded,
    PromptTooLong,
)
from tests.unit.engine.fake_executor import BYTES_PER_PASS, DEADLINE_S, Rig, Sink, rig


@pytest.fixture
def one() -> Iterator[Rig]:
    with rig() as made:
        yield made


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_exactly_max_tokens_are_sampled_and_counted(one: Rig, max_tokens: int) -> None:
    _, sink = one.submit(3, max_tokens)
    outcome = sink.wait()
    assert outcome.reason is FinishReason.LENGTH
    assert sink.ids == list(range(3, 3 + max_tokens))
    assert (outcome.usage.prompt_tokens, outcome.usage.completion_tokens) == (3, max_tokens)
    assert outcome.usage.passes == max_tokens
    assert outcome.usage.prefill_passes == 1
    assert outcome.error is None


@pytest.mark.parametrize("max_tokens", [0, -1])
def test_less_than_one_token_is_refused(one: Rig, max_tokens: int) -> None:
    with pytest.raises(InvalidRequest, match=f"max_tokens: found {max_tokens}, wanted at least 1"):
        one.submit(3, max_tokens)


def test_an_empty_prompt_is_refused_and_the_next_request_works(one: Rig) -> None:
    with pytest.raises(InvalidRequest, match="empty prompt"):
        one.submit(0)
    assert one.submit()[1].reason() is FinishReason.LENGTH


def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers(one: Rig) -> None:
    with pytest.raises(PromptTooLong, match="512 tokens, the context holds 512"):
        one.submit(512)


def test_a_reply_that_the_context_cuts_short_ends_with_that_reason(one: Rig) -> None:
    _, sink = one.submit(508, 100)
    outcome = sink.wait()
    assert outcome.reason is FinishReason.CONTEXT
    assert outcome.usage.completion_tokens == 4


def test_an_end_token_ends_a_request_and_is_counted_but_not_delivered(one: Rig) -> None:
    request, sink = one.request(3, 10, end_ids=frozenset({5}))
    one.engine.submit(request)
    outcome = sink.wait()
    assert (outcome.reason, outcome.end_token_id) == (FinishReason.STOP, 5)
    assert sink.ids == [3, 4]
    assert outcome.usage.completion_tokens == 3


def test_a_sink_that_has_enough_ends_its_request(one: Rig) -> None:
    _, sink = one.submit(3, 10, sink=Sink(stop_after=2))
    outcome = sink.wait()
    assert (outcome.reason, outcome.end_token_id) == (FinishReason.STOP, None)
    assert sink.ids == [3, 4]


def test_an_end_token_as_the_last_token_is_a_stop(one: Rig) -> None:
    request, sink = one.request(3, 2, end_ids=frozenset({4}))
    one.engine.submit(request)
    assert sink.reason() is FinishReason.STOP


def test_usage_counts_the_bytes_of_each_pass_and_the_pages_held(one: Rig) -> None:
    _, sink = one.submit(40, 3)
    usage = sink.wait().usage
    assert usage.streamed_bytes == 3 * BYTES_PER_PASS
    assert usage.head_bytes == 300
    assert usage.embedding_bytes == 42
    assert usage.storage_wait_s == pytest.approx(0.75)
    assert usage.kv_bytes == 2 * 4096
    assert 0 <= usage.queue_s <= usage.first_token_s <= usage.total_s


def test_requests_that_are_alive_together_share_passes(one: Rig) -> None:
    one.executor.hold()
    sinks = [one.submit(3, 4)[1]]
    one.executor.wait_for_pass()
    sinks += [one.submit(3, 4)[1] for _ in range(3)]
    one.executor.free()
    assert [sink.reason() for sink in sinks] == [FinishReason.LENGTH] * 4
    assert len(one.executor.passes) == 5  # the first alone, then all four, the first of them for three tokens
    assert all(sink.ids == [3, 4, 5, 6] for sink in sinks)


def test_a_request_that_could_never_fit_is_refused_with_the_numbers() -> None:
    with (
        rig(n_pages=3) as one,
        pytest.raises(OverBudget, match=r"prompt of 90 and 50 more tokens need 5 KV pages.*holds 3"),
    ):
        one.submit(90, 50)


def test_a_request_that_just_fits_runs() -> None:
    with rig(n_pages=3) as one:
        assert one.submit(90, 7)[1].reason() is FinishReason.LENGTH


def test_beyond_the_queue_requests_are_refused_at_once() -> None:
    with rig(max_active=1, max_queued=2) as one:
        one.executor.hold()
        sinks = [one.submit()[1]]
        one.executor.wait_for_pass()
        sinks += [one.submit()[1] for _ in range(2)]
        with pytest.raises(Overloaded, match="2 requests are waiting, the queue holds 2") as fault:
            one.submit()
        assert fault.value.retry_after_s > 0
        status = one.engine.status()
        assert (status.n_active, status.n_queued, status.max_queued) == (1, 2, 2)
        one.executor.free()
        assert [sink.reason() for sink in sinks] == [FinishReason.LENGTH] * 3


def test_background_requests_leave_a_quarter_of_the_queue_to_interactive_ones() -> None:
    with rig(max_active=1, max_queued=4) as one:
        one.executor.hold()
        sinks = [one.submit()[1]]
        one.executor.wait_for_pass()
        flood = [one.request() for _ in range(4)]
        for request, _ in flood:
            request.priority = Priority.BACKGROUND
        for request, _ in flood[:3]:
            one.engine.submit(request)
        with pytest.raises(Overloaded, match="3 requests are waiting, the queue holds 3 of its priority"):
            one.engine.submit(flood[3][0])
        sinks += [one.submit()[1], *(sink for _, sink in flood[:3])]
        one.executor.free()
        assert [sink.reason() for sink in sinks] == [FinishReason.LENGTH] * 5


def test_without_a_queue_an_idle_engine_still_takes_what_it_can_run() -> None:
    with rig(max_active=1, max_queued=0) as one:
        one.executor.hold()
        sink = one.submit()[1]
        one.executor.wait_for_pass()
        with pytest.raises(Overloaded):
            one.submit()
        one.executor.free()
        assert sink.reason() is FinishReason.LENGTH


def test_progress_tells_the_place_in_the_queue() -> None:
    with rig(max_active=1) as one:
        one.executor.hold()
        requests = [one.submit(5)[0]]
        one.executor.wait_for_pass()
        requests += [one.submit(5)[0] for _ in range(3)]
        assert [one.engine.progress(request).queue_position for request in requests] == [0, 1, 2, 3]
        one.engine.cancel(requests[1])
        assert [one.engine.progress(request).queue_position for request in requests[2:]] == [1, 2]
        assert one.engine.progress(requests[0]).prompt_tokens == 5


def test_a_fault_in_a_pass_ends_the_requests_of_that_pass_and_no_others() -> None:
    with rig(max_active=2) as one:
        one.executor.hold()
        hit = [one.submit(3, 8)[1]]
        one.executor.wait_for_pass()
        hit.append(one.submit(3, 8)[1])
        spared = one.submit(3, 8)[1]
        one.executor.let_go()
        one.executor.wait_for_pass()
        one.executor.faults.append(RuntimeError("a bit fell over"))
        one.executor.free()
        for sink in hit:
            outcome = sink.wait()
            assert outcome.reason is FinishReason.ERROR
            assert isinstance(outcome.error, EngineFault)
            assert "RuntimeError: a bit fell over" in str(outcome.error)
        assert spared.reason() is FinishReason.LENGTH
        assert spared.ids == list(range(3, 11))
        assert one.engine.status().is_alive
        assert one.executor.n_resets == 1


def test_a_fault_of_storage_reaches_the_request_as_it_is(one: Rig) -> None:
    fault = DataLoss("/m.gguf", 4096, "the file ends early")
    one.executor.faults.append(fault)
    assert one.submit()[1].wait().error is fault
    assert "/m.gguf: at byte 4096" in one.engine.status().last_error
    assert one.submit()[1].reason() is FinishReason.LENGTH


def test_logits_that_are_not_finite_end_their_request_alone(one: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = one.engine._delivery._sampler.draw
    bad, bad_sink = one.request(3, 5)

    def draw_or_fail(request: object, logits: object) -> object:
        if request is bad:
            raise EngineFault("the logits of output token 0 are not finite")
        return draw(request, logits)  # type: ignore[arg-type]

    monkeypatch.setattr(one.engine._delivery._sampler, "draw", draw_or_fail)
    one.executor.hold()
    one.engine.submit(bad)
    one.executor.wait_for_pass()
    one.executor.free()
    _, good_sink = one.submit(3, 5)
    assert bad_sink.reason() is FinishReason.ERROR
    assert good_sink.reason() is FinishReason.LENGTH


def test_faults_that_do_not_end_kill_the_loop_and_it_says_so() -> None:
    with rig(max_active=1) as one:
        one.executor.lasting_fault = RuntimeError("for good")
        one.executor.hold()
        sinks = [one.submit()[1] for _ in range(MAX_FAILED_PASSES + 2)]
        one.executor.free()
        outcomes = [sink.wait() for sink in sinks]
        assert all(outcome.reason is FinishReason.ERROR for outcome in outcomes)
        assert all(isinstance(outcome.error, EngineFault) for outcome in outcomes)
        one.engine._thread.join(DEADLINE_S)
        status = one.engine.status()
        assert not status.is_alive
        assert f"{MAX_FAILED_PASSES} passes in a row failed; the last: for good" in status.last_error
        assert len(one.executor.passes) == MAX_FAILED_PASSES
        with pytest.raises(EngineFault, match="the engine has stopped"):
            one.submit()
        one.engine.drain(DEADLINE_S)


def test_faults_with_successes_between_them_never_kill_the_loop(one: Rig) -> None:
    for _ in range(3 * MAX_FAILED_PASSES):
        one.executor.faults.extend([RuntimeError("once"), None])
        assert one.submit(3, 1)[1].reason() is FinishReason.ERROR
        assert one.submit(3, 1)[1].reason() is FinishReason.LENGTH
    assert one.engine.status().is_alive


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_between_passes_kills_the_loop_and_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    with rig(max_active=1) as one:
        one.executor.hold()
        sinks = [one.submit()[1], one.submit()[1]]
        one.executor.wait_for_pass()

        def fail(_draft: object) -> object:
            raise RuntimeError("between")

        monkeypatch.setattr(one.engine._scheduler, "plan_pass", fail)
        one.executor.free()
        for sink in sinks:
            error = sink.wait().error
            assert isinstance(error, EngineFault)
            assert "RuntimeError: between" in str(error)
        one.engine._thread.join(DEADLINE_S)
        assert not one.engine.status().is_alive


def test_a_drain_lets_live_requests_finish_and_takes_no_new_ones(one: Rig) -> None:
    one.executor.hold()
    _, sink = one.submit(3, 4)
    one.executor.wait_for_pass()
    drain = threading.Thread(target=one.engine.drain, args=(DEADLINE_S,))
    drain.start()
    while not one.engine._is_draining:
        pass
    with pytest.raises(Draining):
        one.submit()
    one.executor.free()
    drain.join(DEADLINE_S)
    assert not drain.is_alive()
    assert sink.outcomes.get_nowait().reason is FinishReason.LENGTH


def test_a_drain_without_grace_cancels_what_is_left() -> None:
    with rig(max_active=1) as one:
        one.executor.hold()
        sinks = [one.submit(3, 400)[1]]
        one.executor.wait_for_pass()
        sinks.append(one.submit(3, 4)[1])
        one.engine.drain(0.0)
        assert [sink.outcomes.get_nowait().reason for sink in sinks] == [FinishReason.CANCELLED] * 2


def test_a_stop_ends_the_pass_under_way_and_whoever_is_left() -> None:
    with rig(max_active=1) as one:
        one.executor.hold()
        sinks = [one.submit(3, 400)[1]]
        one.executor.wait_for_pass()
        sinks.append(one.submit(3, 4)[1])
        one.engine.stop()
        for sink in sinks:
            outcome = sink.outcomes.get_nowait()
            assert outcome.reason is FinishReason.ERROR
            assert isinstance(outcome.error, Draining)
        assert not one.engine._thread.is_alive()
        with pytest.raises((Draining, EngineFault)):
            one.submit()
        one.engine.stop()


def test_an_idle_engine_shows_that_it_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "IDLE_TICK_S", 0.01)
    with rig() as one:
        before = one.engine.status().progress_count
        end = time.monotonic() + DEADLINE_S
        while one.engine.status().progress_count < before + 3:
            assert time.monotonic() < end


def test_the_status_adds_up_what_passes_cost(one: Rig) -> None:
    one.submit(3, 4)[1].wait()
    status = one.engine.status()
    assert (status.n_passes, status.total_rows) == (4, 6)
    assert status.streamed_bytes_total == 4 * BYTES_PER_PASS
    assert status.storage_wait_s_total == pytest.approx(1.0)
    assert status.compute_s_total == pytest.approx(3.0)
    assert status.kv_bytes_granted == 64 * 4096
    assert (status.n_active, status.kv_bytes_in_use) == (0, 0)
