"""Promise 2: the greedy ids of a request depend on the request alone.

Every test compares with one reference: all rows of a prompt in one pass, alone, everything pinned, best kernels. The
quick tier takes five prompts and 16 tokens; with `-m slow` it is all twenty prompts and 48 tokens.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sipd.engine.sampling import SamplingOptions
from sipd.kernels import binding
from tests.acceptance.engines import (
    PLENTY,
    ask,
    ask_each,
    ask_together,
    layout_bytes,
    running_engine,
    settings,
    smallest_layout,
    submit,
)
from tests.acceptance.prompts import Prompts

ISAS = ("portable", "avx2", "avx512vnni", "neon", "neon_dotprod")
TWIN_PROMPTS, TWIN_TOKENS = 2, 4  # of the quick tier: the NumPy twin needs a second for a pass


@dataclass(frozen=True, slots=True)
class Case:
    """Prompts with the ids that everything must give."""

    model: Path
    prompts: list[tuple[int, ...]]
    n_tokens: int
    wanted: list[list[int]]
    n_costly: int  # prompts of tests that read the model for every token or compute slowly

    def check(self, n_bytes: int = PLENTY, n_prompts: int | None = None, **values: Any) -> None:  # noqa: ANN401
        """Asserts that an engine with these settings gives the same ids, one request at a time."""
        with running_engine(settings(self.model, **values), n_bytes) as engine:
            found = ask_each(engine, self.prompts[:n_prompts], self.n_tokens)
        assert found == self.wanted[:n_prompts]


@pytest.fixture(
    scope="module", params=[(5, 16, 2), pytest.param((20, 48, 20), marks=pytest.mark.slow)], ids=["quick", "full"]
)
def case(request: pytest.FixtureRequest, smollm2: Path, prompts: Prompts) -> Case:
    """The reference replies."""
    n_prompts, n_tokens, n_costly = request.param
    varied = prompts.varied()[:n_prompts]
    with running_engine(settings(smollm2, direct_io="off")) as engine:
        assert engine.status().plan_bytes == 0
        wanted = ask_each(engine, varied, n_tokens)
    assert all(len(ids) == n_tokens for ids in wanted)
    assert len({tuple(ids) for ids in wanted}) == n_prompts
    return Case(smollm2, varied, n_tokens, wanted, n_costly)


@pytest.mark.parametrize("rows", [7, 1])
def test_ids_are_the_same_when_the_prompt_is_computed_in_chunks(case: Case, rows: int) -> None:
    case.check(rows_per_pass=rows, max_requests=1)


@pytest.mark.parametrize("threads", [1, 2])
def test_ids_are_the_same_on_any_number_of_threads(case: Case, threads: int) -> None:
    if threads > len(os.sched_getaffinity(0)):
        pytest.skip("fewer CPUs than threads")
    case.check(threads=threads)


def test_ids_are_the_same_when_everything_is_streamed(case: Case) -> None:
    least = layout_bytes(smallest_layout(settings(case.model, max_requests=1)))
    with running_engine(settings(case.model, max_requests=1), least) as engine:
        assert engine.status().pinned_bytes == 0
        found = ask_each(engine, case.prompts[: case.n_costly], case.n_tokens)
    assert found == case.wanted[: case.n_costly]


def test_ids_are_the_same_when_half_is_pinned(case: Case) -> None:
    layout = smallest_layout(settings(case.model))
    n_bytes = layout_bytes(layout) + layout.plan.pass_bytes
    with running_engine(settings(case.model), n_bytes) as engine:
        status = engine.status()
        assert 0.3 < status.pinned_bytes / layout.plan.pass_bytes < 0.8
        assert ask_each(engine, case.prompts, case.n_tokens) == case.wanted


def test_ids_are_the_same_beside_five_neighbours(case: Case, prompts: Prompts) -> None:
    neighbours = [(prompts.long(20 + 13 * index), case.n_tokens + 5 * index) for index in range(5)]
    with running_engine(settings(case.model)) as engine:
        for prompt_ids, wanted in list(zip(case.prompts, case.wanted, strict=True))[: case.n_costly]:
            replies = ask_together(engine, [*neighbours[:3], (prompt_ids, case.n_tokens), *neighbours[3:]])
            assert replies[3].ids == wanted


@pytest.mark.parametrize("isa", ISAS)
def test_ids_are_the_same_with_every_instruction_set_of_the_machine(case: Case, isa: str) -> None:
    if isa not in binding.isa_names(binding.load_library()):
        pytest.skip(f"this CPU has no {isa}")
    case.check(n_prompts=max(1, case.n_costly // 3) if isa == "portable" else None, isa=isa)


def test_the_numpy_twin_gives_the_same_ids(case: Case) -> None:
    n_prompts, n_tokens = (TWIN_PROMPTS, TWIN_TOKENS) if case.n_costly < len(case.prompts) else (20, case.n_tokens)
    with running_engine(settings(case.model, isa="numpy", max_requests=n_prompts)) as engine:
        assert engine.isa == "numpy"
        # together: a pass of the twin costs little more with twenty rows than with one
        replies = ask_together(engine, [(prompt_ids, n_tokens) for prompt_ids in case.prompts[:n_prompts]])
    assert [reply.ids for reply in replies] == [ids[:n_tokens] for ids in case.wanted[:n_prompts]]


@pytest.mark.parametrize("direct_io", ["on", "off"])
def test_ids_are_the_same_with_direct_and_buffered_reads(case: Case, direct_io: str) -> None:
    with running_engine(settings(case.model, direct_io=direct_io, pin=False)) as engine:
        assert engine.uses_direct_io == (direct_io == "on")
        found = ask_each(engine, case.prompts[: case.n_costly], case.n_tokens)
    assert found == case.wanted[: case.n_costly]


@pytest.mark.parametrize("tile_bytes", [64 << 10, 4 << 20])
def test_ids_are_the_same_with_tiles_of_any_size(case: Case, tile_bytes: int) -> None:
    case.check(tile_bytes=tile_bytes)


def test_a_seed_gives_the_same_ids_alone_and_beside_neighbours(case: Case) -> None:
    sampling = SamplingOptions(temperature=0.8, seed=7)
    with running_engine(settings(case.model)) as engine:
        first = ask(engine, case.prompts[0], case.n_tokens, sampling).ids
        again = ask(engine, case.prompts[0], case.n_tokens, sampling).ids
        others = [submit(engine, prompt_ids, case.n_tokens)[1] for prompt_ids in case.prompts[1:4]]
        beside = ask(engine, case.prompts[0], case.n_tokens, sampling).ids
        assert all(sink.wait().error is None for sink in others)
    assert first == again == beside
    assert first != case.wanted[0]
