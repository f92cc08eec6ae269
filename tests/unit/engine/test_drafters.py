"""Who drafts how much: rows are shared, drafts never reach past a request's end, and the draft model fills in."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pytest

from sipd.engine.draft_model import DraftAsk, DraftModel
from sipd.engine.drafters import Drafters
from sipd.engine.kv_cache import PageList, PagePool
from sipd.engine.pace import Pace
from sipd.engine.pass_plan import Sequence
from sipd.engine.request import Request
from sipd.engine.sampler import Sampler
from sipd.engine.sampling import SamplingOptions
from sipd.kernels import binding
from tests.unit.engine.fake_executor import VOCAB_SIZE, Sink

if TYPE_CHECKING:
    Logits = ctypes._Pointer[ctypes.c_float]

COPYING = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 1, 2)
PROSE = tuple(range(20, 33))


def decoder(ids: Items[int] = COPYING, max_tokens: int = 100, *, speculates: bool = True) -> Sequence:
    request = Request("r", ids[:-1], max_tokens, SamplingOptions(), Sink(), speculates=speculates)
    request.output_ids.append(ids[-1])
    return Sequence(request, PageList(PagePool(0, 1), 0))


def fast() -> Pace:
    """Rows are free up to 100."""
    pace = Pace(None, 512)
    pace.observe(1, 0.001, 1.0)
    pace.observe(101, 0.101, 1.0)
    return pace


@dataclass
class FakeModel:
    """Guesses 90, 91 ... for whoever asks."""

    step_s: float = 0.001
    asks: list[DraftAsk] = field(default_factory=list)
    forgotten: list[object] = field(default_factory=list)
    control: binding.Control = field(default_factory=binding.Control)
    is_closed: bool = False

    def draft_many(self, asks: Items[DraftAsk]) -> list[list[int]]:
        self.asks = list(asks)
        return [list(range(90, 90 + ask.n)) for ask in asks]

    def forget(self, key: object) -> None:
        self.forgotten.append(key)

    def close(self) -> None:
        self.is_closed = True


def drafters(most: int = 8, pace: Pace | None = None, model: FakeModel | None = None) -> Drafters:
    sampler = Sampler(binding.load_library(), VOCAB_SIZE)
    return Drafters(most, pace or fast(), sampler, cast("DraftModel", model))


def test_a_sequence_that_repeats_itself_gets_drafts() -> None:
    one = decoder()
    drafters().draft([one], 100)
    assert one.drafts == (3, 4, 5, 6, 7, 8, 9, 10)


@pytest.mark.parametrize(("most", "n_rows", "n_drafts"), [(0, 100, 0), (3, 100, 3), (8, 2, 2), (8, 0, 0), (8, -3, 0)])
def test_neither_the_setting_nor_the_rows_are_exceeded(most: int, n_rows: int, n_drafts: int) -> None:
    one = decoder()
    drafters(most).draft([one], n_rows)
    assert len(one.drafts) == n_drafts


@pytest.mark.parametrize(("max_tokens", "n_drafts"), [(1, 0), (2, 0), (3, 1), (6, 4)])
def test_drafts_never_reach_past_the_last_token(max_tokens: int, n_drafts: int) -> None:
    one = decoder(max_tokens=max_tokens)
    drafters().draft([one], 100)
    assert len(one.drafts) == n_drafts


def test_a_request_that_wants_no_drafts_gets_none_and_leaves_its_rows_to_others() -> None:
    one, other = decoder(speculates=False), decoder()
    drafters().draft([one, other], 6)
    assert (len(one.drafts), len(other.drafts)) == (0, 6)


def test_rows_are_shared_evenly() -> None:
    three = [decoder() for _ in range(3)]
    drafters().draft(three, 12)
    assert [len(one.drafts) for one in three] == [4, 4, 4]


def test_all_drafts_together_stay_within_the_rows() -> None:
    some = [decoder() for _ in range(5)]
    drafters().draft(some, 7)
    assert sum(len(one.drafts) for one in some) == 7


def test_rows_that_a_sequence_does_not_use_go_to_those_after_it() -> None:
    one, other = decoder(PROSE), decoder()
    drafters().draft([one, other], 8)
    assert (len(one.drafts), len(other.drafts)) == (0, 8)


def test_new_tokens_are_searched_too() -> None:
    one, made = decoder(PROSE), drafters()
    made.draft([one], 100)
    one.request.output_ids += [20, 21]
    made.draft([one], 1)
    assert one.drafts == (22,)


def test_the_draft_model_is_asked_for_those_in_whose_text_nothing_repeats() -> None:
    model = FakeModel()
    one, other = decoder(), decoder(PROSE)
    made = drafters(model=model)
    made.draft([one, other], 100)
    assert [ask.key for ask in model.asks] == [other]
    assert list(model.asks[0].ids) == list(PROSE)
    assert (one.drafting.is_from_model, other.drafting.is_from_model) == (False, True)
    assert other.drafts == tuple(range(90, 90 + model.asks[0].n))


def test_the_draft_model_stays_within_the_rows() -> None:
    model = FakeModel()
    some = [decoder(PROSE) for _ in range(4)]
    drafters(model=model).draft(some, 6)
    assert sum(len(one.drafts) for one in some) <= 6
    assert sum(ask.n for ask in model.asks) <= 6


def test_a_slow_draft_model_is_asked_now_and_then_for_one() -> None:
    model = FakeModel(step_s=50.0)
    one, made = decoder(PROSE), drafters(model=model)
    asked = []
    for _ in range(60):
        model.asks = []
        made.draft([one], 100)
        asked += [ask.n for ask in model.asks]
    assert asked == [1, 1]


def test_what_the_model_guessed_wrong_counts_for_the_model_alone() -> None:
    model = FakeModel()
    one, made = decoder(PROSE), drafters(model=model)
    made.draft([one], 100)
    made.verified(one, 0)
    assert one.drafting.of_model.rate < one.drafting.of_lookup.rate == pytest.approx(0.7)


def test_the_model_draws_as_the_request_does_and_stops_at_its_end_token() -> None:
    model = FakeModel()
    one = decoder(PROSE)
    one.request.end_ids = frozenset({7})
    drafters(model=model).draft([one], 100)
    logits = (ctypes.c_float * VOCAB_SIZE)()
    pointer: Logits = ctypes.cast(logits, ctypes.POINTER(ctypes.c_float))
    logits[5] = 9.0
    assert model.asks[0].draw(pointer, 0) == 5
    logits[7] = 10.0
    assert model.asks[0].draw(pointer, 1) is None


def test_logits_of_the_model_that_are_no_numbers_are_no_guess() -> None:
    model = FakeModel()
    drafters(model=model).draft([decoder(PROSE)], 100)
    logits = (ctypes.c_float * VOCAB_SIZE)(*[float("nan")] * VOCAB_SIZE)
    assert model.asks[0].draw(ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)), 0) is None


def test_a_sequence_that_ended_may_still_be_judged() -> None:
    model = FakeModel()
    one, made = decoder(), drafters(model=model)
    made.draft([one], 100)
    made.forget(one)
    made.verified(one, 2)
    assert model.forgotten == [one]


def test_stop_and_close_reach_the_model() -> None:
    model = FakeModel()
    made = drafters(model=model)
    made.stop()
    made.close()
    assert model.control.cancel == 1
    assert model.is_closed


def test_without_a_model_there_is_nothing_to_end() -> None:
    made = drafters()
    made.stop()
    made.forget(decoder())
    made.close()
