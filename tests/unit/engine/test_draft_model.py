"""Drafting: several sequences at once, after rejections, with few pages, on storage that fails."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from sipd.engine import draft_model
from sipd.engine.draft_model import CHUNK_S, MIN_CHUNK_ROWS, DraftAsk
from sipd.errors import DataLoss, EngineFault, StorageFault
from sipd.kernels.binding import PAGE_POSITIONS
from tests.unit.engine.fake_draft import LOAD_BYTES, Fakes, continuation, greedy

if TYPE_CHECKING:
    from tests.unit.engine.fake_draft import Logits

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
LONG_PROMPT = [(7 * i + i * i) % 97 for i in range(200)]


def test_drafts_are_what_the_model_would_say() -> None:
    assert Fakes().model.draft("a", PROMPT, 4, greedy) == continuation(PROMPT, 4)


def test_only_what_is_new_is_computed() -> None:
    fakes = Fakes()
    drafts = fakes.model.draft("a", PROMPT, 4, greedy)
    fakes.forward.passes.clear()
    ids = [*PROMPT, *drafts]
    assert fakes.model.draft("a", [*ids, 50], 1, greedy) == continuation([*ids, 50], 1)
    assert [[row[1] for row in rows] for rows in fakes.forward.passes] == [[len(ids) - 1, len(ids)]]


@pytest.mark.parametrize("n_accepted", [0, 1, 2, 3])
def test_drafts_after_a_rejected_one_are_those_of_a_fresh_model(n_accepted: int) -> None:
    fakes = Fakes()
    drafts = fakes.model.draft("a", PROMPT, 4, greedy)
    ids = [*PROMPT, *drafts[:n_accepted], (drafts[n_accepted] + 1) % 97]
    assert fakes.model.draft("a", ids, 4, greedy) == continuation(ids, 4)


def test_ids_that_differ_in_the_middle_are_computed_from_there() -> None:
    fakes = Fakes()
    fakes.model.draft("a", PROMPT, 1, greedy)
    fakes.forward.passes.clear()
    ids = [*PROMPT[:3], 70, *PROMPT[4:], 8]
    assert fakes.model.draft("a", ids, 2, greedy) == continuation(ids, 2)
    assert [row[1] for row in fakes.forward.passes[0]] == list(range(3, len(ids)))


def test_the_same_ids_again_give_the_same_drafts() -> None:
    fakes = Fakes()
    assert fakes.model.draft("a", PROMPT, 3, greedy) == fakes.model.draft("a", PROMPT, 3, greedy)


def test_sequences_share_the_pass_of_each_step() -> None:
    fakes = Fakes()
    prompts = {key: [key, 5] for key in range(3)}
    asks = [DraftAsk(key, ids, 2 + key, greedy) for key, ids in prompts.items()]
    assert fakes.model.draft_many(asks) == [continuation(ids, 2 + key) for key, ids in prompts.items()]
    assert [len(rows) for rows in fakes.forward.passes] == [6, 3, 2, 1]


def test_no_more_sequences_than_rows_of_logits_are_drafted_for() -> None:
    asks = [DraftAsk(key, PROMPT[:2], 1, greedy) for key in range(5)]
    assert [len(drafts) for drafts in Fakes(max_logit_rows=4).model.draft_many(asks)] == [1, 1, 1, 1, 0]


@pytest.mark.parametrize(("ids", "n"), [(PROMPT, 0), ([], 3)])
def test_nothing_asked_gives_nothing(ids: list[int], n: int) -> None:
    fakes = Fakes()
    assert fakes.model.draft("a", ids, n, greedy) == []
    assert not fakes.forward.passes


def test_a_draw_can_end_a_draft() -> None:
    fakes = Fakes()
    assert fakes.model.draft("a", PROMPT, 4, lambda logits, i: greedy(logits, i) if i < 2 else None) == continuation(
        PROMPT, 2
    )


def test_logits_that_are_not_finite_end_a_draft() -> None:
    def draw(logits: Logits, i: int) -> int:
        if i == 1:
            raise EngineFault("not finite")
        return greedy(logits, i)

    assert Fakes().model.draft("a", PROMPT, 4, draw) == continuation(PROMPT, 1)


def test_a_long_prompt_costs_each_call_one_chunk() -> None:
    fakes = Fakes(max_rows=64)
    fakes.forward.row_s = CHUNK_S / 20
    assert fakes.model.draft("a", LONG_PROMPT, 4, greedy) == []
    assert len(fakes.forward.passes) == 1
    assert fakes.draft("a", LONG_PROMPT, 4) == continuation(LONG_PROMPT, 4)
    assert max(map(len, fakes.forward.passes)) == 20


def test_chunks_grow_to_all_rows_where_passes_are_quick() -> None:
    fakes = Fakes(max_rows=64)
    fakes.draft("a", LONG_PROMPT, 1)
    assert max(map(len, fakes.forward.passes)) == 64


def test_chunks_stay_large_enough_for_everyone_who_decodes() -> None:
    fakes = Fakes(max_rows=64, max_logit_rows=12)
    fakes.forward.row_s = 10 * CHUNK_S
    fakes.draft("a", LONG_PROMPT, 1)
    assert len(fakes.forward.passes[1]) == 24 > MIN_CHUNK_ROWS


def test_a_newcomer_does_not_hold_up_those_who_decode() -> None:
    fakes = Fakes()
    fakes.draft("old", PROMPT, 1)
    asks = [DraftAsk("new", LONG_PROMPT, 2, greedy), DraftAsk("old", [*PROMPT, 7], 2, greedy)]
    assert fakes.model.draft_many(asks) == [[], continuation([*PROMPT, 7], 2)]


def test_forgetting_frees_the_pages() -> None:
    fakes = Fakes(n_pages=8)
    fakes.draft("a", LONG_PROMPT, 1)
    assert fakes.model.n_free_pages == 1
    fakes.model.forget("a")
    fakes.model.forget("a")
    assert fakes.model.n_free_pages == 8


def test_the_sequence_not_asked_for_longest_gives_up_its_pages() -> None:
    fakes = Fakes(n_pages=2)
    prompts = {key: [key, *PROMPT] for key in range(3)}
    for key in (0, 1, 0, 2):
        assert fakes.model.draft(key, prompts[key], 2, greedy) == continuation(prompts[key], 2)
    fakes.forward.passes.clear()
    fakes.model.draft(0, prompts[0], 1, greedy)
    assert len(fakes.forward.passes[0]) == 1, "its keys and values were kept"


def test_a_sequence_without_pages_is_computed_anew() -> None:
    fakes = Fakes(n_pages=1)
    for key in ("a", "b", "a"):
        assert fakes.model.draft(key, PROMPT, 2, greedy) == continuation(PROMPT, 2)
        assert len(fakes.forward.passes[-2]) == len(PROMPT)


def test_sequences_asked_for_together_do_not_take_each_others_pages() -> None:
    fakes = Fakes(n_pages=2)
    asks = [DraftAsk(key, PROMPT, 2, greedy) for key in range(3)]
    for _ in range(2):
        assert [len(drafts) for drafts in fakes.model.draft_many(asks)] == [2, 2, 0]
    assert [len(rows) for rows in fakes.forward.passes] == [16, 2, 2, 2], "the second call computes no prompt again"


def test_a_sequence_that_lacks_a_page_gives_back_those_it_holds() -> None:
    fakes = Fakes(n_pages=3)
    long, short = LONG_PROMPT[:40], LONG_PROMPT[:20]
    fakes.draft("a", long, 1)
    fakes.draft("b", short, 1)
    asks = [DraftAsk("a", long, 1, greedy), DraftAsk("b", long, 1, greedy)]
    assert fakes.model.draft_many(asks) == [continuation(long, 1), []]
    assert fakes.model.n_free_pages == 1


def test_a_draft_is_no_longer_than_half_a_window() -> None:
    assert len(Fakes(window=64).model.draft("a", PROMPT, 100, greedy)) == 32


def test_a_sequence_longer_than_the_window_is_drafted_for_from_its_end() -> None:
    window = 2 * PAGE_POSITIONS
    fakes = Fakes(n_pages=2, window=window)
    ids = list(LONG_PROMPT)
    for _ in range(3 * window):
        seen = [position for rows in fakes.forward.passes for _, position, _, _ in rows]
        fakes.forward.passes.clear()
        assert max(seen, default=0) < window
        drafts = fakes.draft("a", ids, 3)
        assert drafts[0] in {continuation(ids[base:], 1)[0] for base in range(len(ids) - window, len(ids))}
        ids.append(drafts[0])


def test_a_window_begins_anew_at_its_half() -> None:
    fakes = Fakes(n_pages=2, window=64)
    assert fakes.draft("a", LONG_PROMPT, 3) == continuation(LONG_PROMPT[-32:], 3)


def test_a_key_that_stands_for_a_shorter_sequence_starts_over() -> None:
    fakes = Fakes(n_pages=2, window=64)
    fakes.draft("a", LONG_PROMPT, 3)
    assert fakes.draft("a", PROMPT, 3) == continuation(PROMPT, 3)


def test_a_cancelled_call_gives_what_was_drawn_and_the_next_is_right() -> None:
    fakes = Fakes()

    def draw(logits: Logits, i: int) -> int:
        fakes.model.control.cancel = int(i == 1)
        return greedy(logits, i)

    assert fakes.model.draft("a", PROMPT, 4, draw) == continuation(PROMPT, 2)
    assert fakes.stream.n_rewinds == 1
    assert fakes.model.draft("a", PROMPT, 4, greedy) == []
    fakes.model.control.cancel = 0
    assert fakes.model.draft("a", PROMPT, 4, greedy) == continuation(PROMPT, 4)


def test_nothing_waits_for_weights_that_are_still_being_read() -> None:
    fakes = Fakes()
    fakes.stream.loaded = LOAD_BYTES - 1
    assert fakes.model.draft("a", PROMPT, 1, greedy) == []
    assert not fakes.forward.passes
    fakes.stream.loaded = LOAD_BYTES
    assert fakes.model.draft("a", PROMPT, 1, greedy) == continuation(PROMPT, 1)


def failing() -> Fakes:
    """A draft model whose weights cannot be read just now."""
    fakes = Fakes()
    fakes.stream.loaded = 0
    fakes.stream.found = StorageFault("draft.gguf", 5, "read failed with EIO"), 5
    return fakes


def test_storage_that_fails_is_told_of_once_and_left_alone_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    fakes = failing()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert fakes.model.draft("a", PROMPT, 1, greedy) == []
    assert [record.message for record in caplog.records] == [
        "draft model: draft.gguf: at byte 5: read failed with EIO; trying again in 10 s"
    ]
    assert fakes.stream.n_recovers == 0


def test_storage_that_failed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_model, "RETRY_S", 0.0)
    fakes = failing()
    assert not fakes.model.is_ready()
    fakes.stream.loaded = LOAD_BYTES
    assert fakes.model.draft("a", PROMPT, 1, greedy) == continuation(PROMPT, 1)
    assert fakes.stream.n_recovers == 1


def test_a_draft_file_that_changed_switches_drafts_off() -> None:
    fakes = Fakes()
    fakes.stream.loaded = 0
    fakes.stream.found = DataLoss("draft.gguf", 5, "the file ends early"), 0
    assert not fakes.model.is_ready()
    fakes.stream.found = None
    fakes.stream.loaded = LOAD_BYTES
    assert not fakes.model.is_ready()
    assert fakes.model.draft("a", PROMPT, 1, greedy) == []


def test_a_pass_that_fails_switches_drafts_off() -> None:
    fakes = Fakes()
    fakes.forward.fails = True
    assert fakes.model.draft("a", PROMPT, 1, greedy) == []
    fakes.forward.fails = False
    assert fakes.model.draft("a", PROMPT, 1, greedy) == []


def test_closing_frees_the_model_and_its_files() -> None:
    fakes = Fakes()
    fakes.model.close()
    assert (fakes.forward.is_closed, fakes.stream.is_closed) == (True, True)
    assert fakes.model.draft("a", PROMPT, 1, greedy) == []


def test_the_cost_of_a_step_is_known() -> None:
    fakes = Fakes()
    fakes.forward.row_s = 0.5
    fakes.model.draft("a", PROMPT, 3, greedy)
    assert fakes.model.step_s == 0.5
