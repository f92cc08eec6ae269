"""The engine thread with a cache and drafts: same tokens, fewer rows, and faults that leave nothing wrong."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from sipd.engine.request import FinishReason, Outcome, Request
from sipd.errors import DataLoss, EngineFault, StorageFault
from tests.unit.engine.fake_executor import VOCAB_SIZE, Rig, Sink, rig

if TYPE_CHECKING:
    Logits = ctypes._Pointer[ctypes.c_float]

COPYING = (*range(1, 9), 1, 2)  # the fake model counts on: 3, 4 ... 8, and then 9, which the prompt does not say


@pytest.fixture
def one() -> Iterator[Rig]:
    with rig(has_cache=True, draft_tokens=4) as made:
        yield made


def run(one: Rig, n_prompt: int = 70, max_tokens: int = 4, session: str = "") -> tuple[Outcome, list[int]]:
    request, sink = one.request(n_prompt, max_tokens)
    request.session = session
    one.engine.submit(request)
    return sink.wait(), sink.ids


def copying(one: Rig, max_tokens: int = 12) -> tuple[Request, Sink]:
    request, sink = one.request(1, max_tokens)
    request.prompt_ids = COPYING
    return request, sink


def finished(one: Rig, request: Request, sink: Sink) -> Outcome:
    one.engine.submit(request)
    return sink.wait()


def test_a_prompt_that_was_there_before_costs_one_row_and_says_the_same(one: Rig) -> None:
    first, ids = run(one)
    n_passes = len(one.executor.passes)
    again, same_ids = run(one)
    assert (first.usage.cached_tokens, again.usage.cached_tokens) == (0, 69)
    assert ids == same_ids
    assert len(one.executor.passes[n_passes]) == 1


def test_a_prompt_of_one_token_to_come_is_left_whole(one: Rig) -> None:
    run(one, 100, 1)
    assert run(one, 100, 1)[0].usage.cached_tokens == 99


def test_a_chat_computes_each_token_once(one: Rig) -> None:
    prompt = [5, 9, 2]
    for turn in range(10):
        request, sink = one.request(1, 7)
        request.prompt_ids, request.session, request.speculates = tuple(prompt), "a/b", False
        finished(one, request, sink)
        prompt += [*sink.ids, 100 + turn, 3]
    said = prompt[:-2]
    assert sum(map(len, one.executor.passes)) == len(said) - 1, "all but the very last token, which is sampled alone"


def test_those_who_come_together_share_what_the_first_has_computed(one: Rig) -> None:
    one.executor.hold()
    _, first = one.submit(40, 3)
    one.executor.wait_for_pass()
    _, second = one.submit(40, 3)
    one.executor.free()
    assert first.wait().reason is second.wait().reason is FinishReason.LENGTH
    assert first.ids == second.ids
    assert len(one.executor.passes[1]) <= 1 + 8


def test_drafts_that_are_right_save_passes_and_change_no_token(one: Rig) -> None:
    request, sink = copying(one)
    outcome = finished(one, request, sink)
    plain, plain_sink = copying(one)
    plain.speculates = False
    plain_outcome = finished(one, plain, plain_sink)
    assert sink.ids == plain_sink.ids == list(range(3, 15))
    assert plain_outcome.usage.drafted_tokens == 0
    assert outcome.usage.passes + outcome.usage.accepted_tokens == plain_outcome.usage.passes == 12
    assert outcome.usage.accepted_tokens >= 4
    assert outcome.usage.drafted_tokens > outcome.usage.accepted_tokens
    status = one.engine.status()
    assert status.drafted_tokens_total == outcome.usage.drafted_tokens
    assert status.accepted_tokens_total == outcome.usage.accepted_tokens


def test_an_end_token_among_drafts_ends_the_request_there(one: Rig) -> None:
    request, sink = copying(one)
    request.end_ids = frozenset({6})
    outcome = finished(one, request, sink)
    run(one)  # the engine is past whatever else it might do to the first
    assert (outcome.reason, outcome.end_token_id, sink.ids) == (FinishReason.STOP, 6, [3, 4, 5])
    assert request.output_ids == [3, 4, 5, 6]
    assert outcome.usage.completion_tokens == 4


def test_a_stop_string_among_drafts_ends_the_request_there(one: Rig) -> None:
    request, sink = one.request(1, 12, sink=Sink(stop_after=3))
    request.prompt_ids = COPYING
    assert finished(one, request, sink).reason is FinishReason.STOP
    run(one)
    assert sink.ids == [3, 4, 5]


def test_drafts_may_reach_into_the_next_page(one: Rig) -> None:
    request, sink = one.request(1, 20)
    request.prompt_ids = (*range(100, 120), *COPYING)
    assert finished(one, request, sink).usage.accepted_tokens >= 4
    assert sink.ids == list(range(3, 23))


@pytest.mark.parametrize("max_tokens", range(1, 9))
def test_drafts_never_bring_more_tokens_than_were_asked_for(one: Rig, max_tokens: int) -> None:
    request, sink = copying(one, max_tokens)
    assert finished(one, request, sink).reason is FinishReason.LENGTH
    assert sink.ids == list(range(3, 3 + max_tokens))


def test_what_drafts_left_behind_is_cached_as_far_as_it_was_right(one: Rig) -> None:
    request, sink = copying(one)
    finished(one, request, sink)
    again, again_sink = one.request(1, 3)
    again.prompt_ids = (*COPYING, *sink.ids, 50)
    assert finished(one, again, again_sink).usage.cached_tokens in {len(COPYING) + 11, len(COPYING) + 10}
    assert again_sink.ids == [51, 52, 53]


def test_logits_that_are_no_numbers_end_their_request_though_drafts_are_left(one: Rig) -> None:
    logits, n_drawn = one.executor.logits, 0

    def broken(row: int) -> Logits:
        nonlocal n_drawn
        n_drawn += 1
        if n_drawn != 3:
            return logits(row)
        numbers = (ctypes.c_float * VOCAB_SIZE)(*[float("nan")] * VOCAB_SIZE)
        return ctypes.cast(numbers, ctypes.POINTER(ctypes.c_float))

    one.executor.logits = broken  # type: ignore[method-assign]
    request, sink = copying(one)
    outcome = finished(one, request, sink)
    assert outcome.reason is FinishReason.ERROR
    assert isinstance(outcome.error, EngineFault)
    assert sink.ids == [3, 4]
    assert run(one, 3, 4)[1] == [3, 4, 5, 6]


def test_a_fault_keeps_what_earlier_passes_computed_and_nothing_of_its_own(one: Rig) -> None:
    one.executor.faults.extend([None, StorageFault("model", 0, "gone")])
    assert run(one, 120)[0].reason is FinishReason.ERROR
    outcome, ids = run(one, 120)
    assert outcome.usage.cached_tokens == 64
    assert ids == [120, 121, 122, 123]


@pytest.mark.parametrize("n_before", [20, 64])
def test_a_changed_file_clears_the_cache_of_the_failed_requests_as_well(n_before: int) -> None:
    with rig(has_cache=True, max_rows=n_before) as one:
        run(one, 40)
        one.executor.faults.extend([None, DataLoss("model", 0, "changed")])
        request, sink = one.request(n_before + 30, 4, first=300)
        assert finished(one, request, sink).reason is FinishReason.ERROR
        assert one.reuse.pool.n_filled == 0
        again, again_sink = one.request(n_before + 30, 4, first=300)
        assert finished(one, again, again_sink).usage.cached_tokens == 0
        assert run(one, 40)[0].usage.cached_tokens == 0


def test_a_cancelled_prompt_leaves_what_was_computed(one: Rig) -> None:
    one.executor.hold()
    request, sink = one.submit(150, 3)
    one.executor.wait_for_pass()
    one.executor.let_go()
    one.executor.wait_for_pass()
    one.engine.cancel(request)
    assert sink.reason() is FinishReason.CANCELLED
    one.executor.free()
    assert run(one, 150)[0].usage.cached_tokens == 64


def test_a_request_that_has_switched_reuse_off_neither_takes_nor_leaves(one: Rig) -> None:
    request, sink = one.request(70, 3)
    request.uses_prefix_cache = False
    finished(one, request, sink)
    assert one.engine.status().kv_bytes_cached == 0
    assert run(one)[0].usage.cached_tokens == 0
    again, again_sink = one.request(70, 3)
    again.uses_prefix_cache = False
    assert finished(one, again, again_sink).usage.cached_tokens == 0


def test_sessions_stay_within_their_cap_and_are_counted(one: Rig) -> None:
    for name in "abcdef":
        run(one, 20, 2, f"owner/{name}")
    assert one.engine.status().n_sessions == 4
    assert one.reuse.sessions is not None
    assert one.reuse.sessions.keys == [f"owner/{name}" for name in "cdef"]


def test_a_session_that_nobody_came_back_to_is_let_go() -> None:
    with rig(has_cache=True) as one:
        assert one.reuse.sessions is not None
        one.reuse.sessions._idle_s = 0.0
        run(one, 20, 2, "owner/a")
        run(one, 3, 1)
        assert one.engine.status().n_sessions == 0


def test_pages_that_are_kept_serve_whoever_needs_them() -> None:
    with rig(has_cache=True, n_pages=4) as one:
        for first in (0, 200, 400, 600):
            request, sink = one.request(120, 5, first=first)
            assert finished(one, request, sink).reason is FinishReason.LENGTH
            assert sink.ids == list(range(first + 120, first + 125))


def test_the_status_tells_pages_in_use_from_pages_that_are_kept(one: Rig) -> None:
    run(one, 70, 4)
    run(one, 70, 4)
    one.executor.hold()
    while not one.executor.entered.empty():
        one.executor.entered.get()
    _, sink = one.submit(40, 3)
    one.executor.wait_for_pass()
    status = one.engine.status()
    assert (status.kv_bytes_in_use, status.kv_bytes_cached) == (2 * 4096, 2 * 4096)
    assert status.kv_bytes_granted == 64 * 4096
    assert status.cached_tokens_total == 69 + 39
    assert (status.n_active, status.row_cap, status.max_rows) == (1, 64, 64)
    one.executor.free()
    sink.wait()
