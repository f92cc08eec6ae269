"""Sequences that leave a pass under way: the others' logits and keys keep every bit, what was dropped stops at once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sipd.kernels import binding
from sipd.models.forward import PassResult
from sipd.weights.plain_source import PlainSource
from sipd.weights.stream import Stream
from sipd.weights.tensor_table import QuantType
from tests.builders import build_gguf
from tests.unit.kernels.kernel_calls import F32, ISAS, LIBRARY, assert_same_bits
from tests.unit.kernels.loaded_model import N_PAGES, PAGES, LoadedModel, Setting, tokens_of

N_LAYERS = 4
SHAPE: dict[str, Any] = {"d_model": 96, "n_heads": 6, "n_kv_heads": 2, "d_ff": 160, "vocab_size": 203}
TWIN = Setting(isa="numpy", tile_bytes=4096)
DEADLINE_S = 20.0
Row = tuple[int, int, int, int]

# what sequences 0 to 3 do in the pass that some of them leave: decode, a prompt, the middle of a prompt, decode
EARLIER = (37, 0, 0, 5)
NOW = (1, 20, 9, 1)
SAMPLING = (0, 1, 3)
DROPS = [{0}, {1}, {2}, {3}, {0, 2}, {1, 3}, {0, 1, 2}, {0, 1, 3}]


def rows_of(firsts: Sequence[int], counts: Sequence[int], sampling: Sequence[int]) -> list[Row]:
    """Rows of all sequences: so many tokens of each from a position on, the last of a sampling one with logits."""
    rows: list[Row] = []
    for sequence, (first, n) in enumerate(zip(firsts, counts, strict=True)):
        tokens = tokens_of(first + n, SHAPE["vocab_size"], seed=sequence)
        rows += [(tokens[position], position, sequence, -1) for position in range(first, first + n)]
        if n and sequence in sampling:
            rows[-1] = (*rows[-1][:3], sampling.index(sequence))
    return rows


def later_logits(model: LoadedModel) -> F32:
    """One more token of every sequence: tells whether their keys and values are whole."""
    ends = [a + b for a, b in zip(EARLIER, NOW, strict=True)]
    model.run(rows_of(ends, (1, 1, 1, 1), (0, 1, 2, 3)))
    return model.logits(4)


@contextmanager
def prepared(path: Path, setting: Setting) -> Iterator[LoadedModel]:
    """A model whose sequences stand before the pass in question."""
    with LoadedModel(path, setting) as model:
        model.run(rows_of((0, 0, 0, 0), EARLIER, (0,)))
        yield model


def drop(model: LoadedModel, sequences: set[int]) -> None:
    for sequence in sequences:
        model.forward.control.drops[sequence] = binding.DROP


def keep_all(model: LoadedModel) -> None:
    for sequence in range(len(PAGES)):
        model.forward.control.drops[sequence] = binding.KEEP


def run_now(model: LoadedModel) -> PassResult:
    return model.forward.run(rows_of(EARLIER, NOW, SAMPLING), len(SAMPLING), PAGES)


def keys_written(model: LoadedModel, sequence: int) -> list[bool]:
    """For each layer, whether the first page of a sequence holds anything."""
    page = np.frombuffer(model.forward.page(PAGES[sequence][0]), np.uint8).reshape(N_LAYERS, -1)
    return [bool(layer.any()) for layer in page]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("drops") / "m.gguf"
    roles = {"attn_v": QuantType.F16, "ffn_down": QuantType.Q8_0}
    return build_gguf(path, quant=QuantType.Q4_1, quant_by_role=roles, n_layers=N_LAYERS, **SHAPE)


@pytest.fixture(scope="module")
def wanted(path: Path) -> tuple[F32, F32]:
    """Logits of the pass and of the one after it when nobody leaves, by the twin."""
    with prepared(path, TWIN) as model:
        assert run_now(model).dropped == frozenset()
        return model.logits(len(SAMPLING)), later_logits(model)


def assert_others_are_whole(model: LoadedModel, result: PassResult, wanted: tuple[F32, F32]) -> None:
    """Whoever was not dropped has its logits now, and those of its next token."""
    assert result.status == binding.PASS_DONE
    now, later = wanted
    found = model.logits(len(SAMPLING))
    for index, sequence in enumerate(SAMPLING):
        if sequence not in result.dropped:
            assert_same_bits(found[index], now[index])
    keep_all(model)
    found = later_logits(model)
    for sequence in range(len(PAGES)):
        if sequence not in result.dropped:
            assert_same_bits(found[sequence], later[sequence])


@pytest.mark.parametrize("isa", [*ISAS, "numpy"])
@pytest.mark.parametrize("dropped", DROPS, ids=str)
def test_sequences_dropped_before_the_first_layer_cost_nothing_and_change_nothing(
    path: Path, wanted: tuple[F32, F32], isa: str, dropped: set[int]
) -> None:
    with prepared(path, Setting(isa=isa, tile_bytes=4096)) as model:
        drop(model, dropped)
        result = run_now(model)
        assert result.dropped == dropped
        for sequence in dropped & {1, 2}:  # whose pages were never written before
            assert keys_written(model, sequence) == [False] * N_LAYERS
        assert_others_are_whole(model, result, wanted)


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < end
        threading.Event().wait(0.0005)


def extents_before(path: Path, layer: int) -> int:
    """How many reads come before the second group of products of a layer."""
    with LoadedModel(path, TWIN) as model:
        layers = [step.layer for step in model.program.product_steps()]
        tile = model.plan.group_tiles[layers.index(layer) + 1][0]
        return model.plan.tiles[tile].extent


def hold_reads(model: LoadedModel, n_extents: int) -> Stream:
    """No read goes on after the first `n_extents`, which are in the ring: the pass will wait for the next one."""
    stream = model.source
    assert isinstance(stream, Stream)
    extents = model.plan.extents
    n_bytes = sum(extent.weight_bytes for extent in (*extents, *extents[:n_extents]))  # one pass was before
    wait_until(lambda: stream.counters().plan_bytes == n_bytes)
    LIBRARY.sipd_stream_set_depth(stream.handle, 0)
    return stream


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layer", range(N_LAYERS))
@pytest.mark.parametrize("dropped", [{1}, {0, 2}, {0, 1, 2}], ids=str)
def test_a_sequence_dropped_in_a_layer_has_left_by_the_next_one(
    path: Path, wanted: tuple[F32, F32], isa: str, layer: int, dropped: set[int]
) -> None:
    n_extents = extents_before(path, layer)
    setting = Setting(isa=isa, tile_bytes=4096, slots=n_extents, threads=2)
    with prepared(path, setting) as model, ThreadPoolExecutor(1) as pool:
        stream = hold_reads(model, n_extents)
        model.forward.control.layer = -1
        running = pool.submit(run_now, model)
        try:
            wait_until(lambda: model.forward.control.layer == layer)
            drop(model, dropped)
        finally:
            LIBRARY.sipd_stream_set_depth(stream.handle, 2)
        result = running.result(DEADLINE_S)
        assert result.dropped == dropped
        for sequence in dropped & {1, 2}:
            assert keys_written(model, sequence) == [each <= layer for each in range(N_LAYERS)]
        assert_others_are_whole(model, result, wanted)


@pytest.mark.parametrize("dropped", [{1}, {0, 2}, {0, 1, 2}], ids=str)
@pytest.mark.parametrize("layer", range(N_LAYERS))
def test_the_twin_drops_at_the_same_borders(
    path: Path, wanted: tuple[F32, F32], monkeypatch: pytest.MonkeyPatch, layer: int, dropped: set[int]
) -> None:
    n_extents = extents_before(path, layer)
    with prepared(path, TWIN) as model:
        extent_of = PlainSource.extent

        def extent(source: PlainSource, index: int) -> bytes | None:
            if index == n_extents:
                drop(model, dropped)
            return extent_of(source, index)

        with monkeypatch.context() as patch:
            patch.setattr(PlainSource, "extent", extent)
            result = run_now(model)
        assert result.dropped == dropped
        for sequence in dropped & {1, 2}:
            assert keys_written(model, sequence) == [each <= layer for each in range(N_LAYERS)]
        assert_others_are_whole(model, result, wanted)


@pytest.mark.parametrize("isa", [*ISAS, "numpy"])
def test_a_pass_that_everybody_leaves_is_cancelled_and_the_next_one_is_right(
    path: Path, wanted: tuple[F32, F32], isa: str
) -> None:
    with prepared(path, Setting(isa=isa, tile_bytes=4096)) as model:
        drop(model, {0, 1, 2, 3})
        result = run_now(model)
        assert result.status == binding.PASS_CANCELLED
        assert result.dropped == {0, 1, 2, 3}
        assert result.streamed_bytes == result.embedding_bytes
        keep_all(model)
        model.source.rewind()
        assert_others_are_whole(model, run_now(model), wanted)


@pytest.mark.parametrize("setting", [Setting(tile_bytes=4096, threads=2), Setting(pin=1.0), Setting(pin=0.5, slots=6)])
def test_sequences_dropped_at_random_times_never_change_the_others(
    path: Path, wanted: tuple[F32, F32], setting: Setting
) -> None:
    random_of = random.Random(7)
    counts: set[int] = set()
    with prepared(path, setting) as model, ThreadPoolExecutor(1) as pool:
        control = model.forward.control
        # on a busy machine a short pass may often be over before the drop
        for number in range(2000):
            if number >= 60 and len(counts) > 1:
                break
            chosen = set(random_of.sample(range(4), random_of.randrange(1, 4)))
            after = control.steps + random_of.randrange(8 * N_LAYERS)
            running = pool.submit(run_now, model)
            while control.steps < after and not running.done():
                pass
            drop(model, chosen)
            result = running.result(DEADLINE_S)
            assert result.dropped <= chosen
            counts.add(len(result.dropped))
            assert_others_are_whole(model, result, wanted)
    assert len(counts) > 1


@pytest.mark.parametrize("isa", [*ISAS, "numpy"])
def test_pages_of_a_dropped_sequence_can_be_given_to_another(path: Path, isa: str) -> None:
    """What was left in them is never read."""
    prompt = tokens_of(40, SHAPE["vocab_size"], seed=9)
    with LoadedModel(path, Setting(isa=isa)) as model:
        fresh = model.prompt_logits(prompt)
    with prepared(path, Setting(isa=isa)) as model:
        for page in range(N_PAGES):
            model.forward.page(page)[:] = b"\xff" * len(model.forward.page(page))  # no number at all
        assert_same_bits(model.prompt_logits(prompt), fresh)


@pytest.mark.parametrize("isa", [*ISAS, "numpy"])
def test_logits_of_a_dropped_sequence_hold_nothing_of_an_earlier_pass(path: Path, isa: str) -> None:
    with prepared(path, Setting(isa=isa)) as model:
        run_now(model)
        drop(model, {1})
        run_now(model)
        assert [bool(model.logits(len(SAMPLING))[index].any()) for index in range(3)] == [True, False, True]
