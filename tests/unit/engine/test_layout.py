"""How budgets are divided: a fine sweep over models of several shapes, from the least that works to everything."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest

from sipd.config import Config
from sipd.engine.build import divide_budget, grant_layout
from sipd.engine.layout import MIN_CONTEXT, MIN_SLOTS, Divider, Layout
from sipd.errors import BudgetError, ConfigError
from sipd.kernels import binding
from sipd.memory import Ledger, default_margin_bytes
from sipd.models.forward import activation_bytes, page_bytes
from sipd.models.program import Program
from sipd.size import parse_size
from sipd.weights.tensor_table import Checkpoint, QuantType
from tests.builders import ModelShape
from tests.checkpoints import SMOLLM2, SMOLLM2_TYPES, gguf_table, program_of

LIBRARY = binding.load_library()
KIB = 1024
MIB = 1024**2
EVERYTHING = 1 << 40
TINY = ModelShape()
UNTIED_TYPES = {"token_embd": QuantType.F32, "output": QuantType.Q8_0}


@cache
def program(name: str) -> Program:
    tables: dict[str, Checkpoint] = {
        "tiny": gguf_table(TINY),
        "tiny-tied": gguf_table(replace(TINY, is_tied=True), quant=QuantType.Q8_0),
        "smollm2": gguf_table(SMOLLM2, quant=QuantType.Q4_1, quant_by_role=SMOLLM2_TYPES),
        "smollm2-untied": gguf_table(replace(SMOLLM2, is_tied=False), quant=QuantType.Q4_1, quant_by_role=UNTIED_TYPES),
        "wide": gguf_table(ModelShape(n_layers=3, d_model=512, n_heads=8, n_kv_heads=2, d_ff=1408, vocab_size=3000)),
    }
    return program_of(tables[name])


SHAPES = ("tiny", "tiny-tied", "smollm2", "smollm2-untied", "wide")
CONFIGS = {
    "defaults": Config(),
    "small-tiles": Config(tile_bytes=64 * KIB),
    "one-request": Config(max_requests=1),
    "odd-counts": Config(max_requests=21, rows_per_pass=99, ring_slots=5),
    "context": Config(context=200),
    "no-pins": Config(pin=False),
}


@cache
def divider(name: str, config: str) -> Divider:
    return Divider(LIBRARY, program(name), CONFIGS[config], n_threads=4, available=0)


def divide(name: str, config: str = "defaults", available: int = 0) -> Layout:
    """The layout of `available` bytes; with 0 the least one there is."""
    one = divider(name, config)
    one._available = available
    return one.divide()


@cache
def sweep(name: str, config: str = "defaults") -> tuple[tuple[int, Layout], ...]:
    """Layouts from the least budget to the first that streams nothing, every step on the way, and a little on."""
    least = total(divide(name, config))
    low, high = least, EVERYTHING
    if CONFIGS[config].pin:
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if divide(name, config, middle).streamed_bytes == 0 else (middle, high)
    else:
        high = least + 64 * MIB
    around = (-1, 0, 1, 4 * KIB, 20 * KIB, MIB, 64 * MIB)
    step = 256 * KIB if config == "defaults" else 3 * MIB + 1
    budgets = {*range(least, high, step), *(high + n for n in around if high + n >= least)}
    return tuple((n, divide(name, config, n)) for n in sorted(budgets))


def total(layout: Layout) -> int:
    return sum(n_bytes for _, n_bytes in layout.terms)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("name", SHAPES)
def test_the_terms_never_exceed_what_is_available(name: str, config: str) -> None:
    for available, layout in sweep(name, config):
        assert total(layout) <= available


@pytest.mark.parametrize("available", [0, 48 * MIB, 64 * MIB])
def test_the_stacks_of_many_readers_are_paid_for_by_the_other_parts(available: int) -> None:
    few, many = (
        Divider(LIBRARY, program("smollm2"), Config(readers=n), n_threads=4, available=available).divide()
        for n in (8, 64)
    )
    assert dict(many.terms)["reader stacks"] == 56 * 16 * KIB
    assert "reader stacks" not in dict(few.terms)
    assert total(many) <= max(available, total(few) + 56 * 16 * KIB)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("name", SHAPES)
def test_the_terms_are_those_of_the_shapes_that_are_built(name: str, config: str) -> None:
    for _, layout in sweep(name, config):
        assert layout.activation_bytes == activation_bytes(LIBRARY, program(name), layout.plan, layout.forward)
        assert layout.kv_bytes == layout.forward.n_pages * page_bytes(program(name))


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("name", SHAPES)
def test_streamed_bytes_never_rise_with_the_budget(name: str, config: str) -> None:
    streamed = [layout.streamed_bytes for _, layout in sweep(name, config)]
    assert streamed == sorted(streamed, reverse=True)
    assert (streamed[-1] == 0) is CONFIGS[config].pin


@pytest.mark.parametrize("name", ["smollm2", "smollm2-untied"])
def test_pinned_sets_are_nested(name: str) -> None:
    held: set[int] = set()
    plan = divide(name).plan
    for _, layout in sweep(name):
        if layout.plan is not plan:  # everything fits, the embedding as well: a plan of its own
            assert layout.streamed_bytes == 0
            continue
        pinned = set(layout.stream.pin_offsets)
        assert held <= pinned
        held = pinned


@pytest.mark.parametrize("name", ["smollm2", "smollm2-untied"])
def test_rows_slots_context_and_pages_never_fall_before_everything_fits(name: str) -> None:
    latest = (0, 0, 0, 0)
    for _, layout in sweep(name):
        if layout.streamed_bytes == 0:
            break
        found = (layout.forward.max_rows, layout.stream.n_slots, layout.context_tokens, layout.forward.n_pages)
        assert all(before <= after for before, after in zip(latest, found, strict=True))
        latest = found


@pytest.mark.parametrize("name", SHAPES)
def test_the_least_layout_holds_one_request_of_the_least_context(name: str) -> None:
    layout = divide(name)
    context = min(MIN_CONTEXT, program(name).hyperparameters.context_length)
    assert layout.context_tokens == context
    assert layout.forward.max_rows >= Config().max_requests
    if layout.streamed_bytes:
        assert layout.stream.n_slots == MIN_SLOTS


@pytest.mark.parametrize("name", SHAPES)
def test_the_context_always_fits_the_pages(name: str) -> None:
    for _, layout in sweep(name):
        assert layout.forward.n_pages * binding.PAGE_POSITIONS >= layout.context_tokens


@pytest.mark.parametrize("name", SHAPES)
def test_a_ring_slot_holds_the_largest_read(name: str) -> None:
    layout = divide(name)
    if layout.streamed_bytes:
        assert layout.stream.slot_bytes >= max(extent.span_bytes for extent in layout.plan.extents)


def test_without_pins_nothing_is_kept_however_large_the_budget() -> None:
    layout = divide("tiny", "no-pins", EVERYTHING)
    assert (layout.pinned_weight_bytes, layout.stream.pin_bytes) == (0, 0)
    assert layout.streamed_bytes == layout.plan.pass_bytes


def test_a_resident_untied_model_keeps_its_embedding_too() -> None:
    layout = divide("tiny", "defaults", EVERYTHING)
    assert layout.plan.matrices[0].name == "token_embd.weight"
    assert layout.pinned_weight_bytes == layout.plan.pass_bytes


def test_a_configured_context_is_kept_at_every_budget() -> None:
    assert {divide("smollm2", "context", n).context_tokens for n in (0, 64 * MIB, EVERYTHING)} == {200}


def test_the_context_of_linear_scaling_reaches_further_when_it_is_asked_for() -> None:
    scaled = program_of(gguf_table(TINY, metadata={"llama.rope.scaling.factor": 4.0}))
    asked = Divider(LIBRARY, scaled, Config(context=2048), n_threads=4, available=EVERYTHING).divide()
    assert asked.context_tokens == 2048
    assert Divider(LIBRARY, scaled, Config(), n_threads=4, available=EVERYTHING).divide().context_tokens == 512
    with pytest.raises(ConfigError, match="context: found 2049, too many for the model: it was made for at most 2048"):
        Divider(LIBRARY, scaled, Config(context=2049), n_threads=4, available=0).divide()


def test_the_context_ends_with_the_window_and_one_beyond_it_is_refused_by_that_name() -> None:
    windowed = program_of(gguf_table(TINY, metadata={"llama.attention.sliding_window": 100}))
    assert Divider(LIBRARY, windowed, Config(), n_threads=4, available=EVERYTHING).divide().context_tokens == 100
    Divider(LIBRARY, windowed, Config(context=100), n_threads=4, available=0).divide()
    with pytest.raises(ConfigError, match="found 101, too many for the model: its sliding window holds 100"):
        Divider(LIBRARY, windowed, Config(context=101), n_threads=4, available=0).divide()


@pytest.mark.parametrize(
    ("config", "setting"),
    [
        (Config(context=8193), "context"),
        (Config(rows_per_pass=7, max_requests=8), "rows_per_pass"),
        (Config(ring_slots=2), "ring_slots"),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused_by_name(config: Config, setting: str) -> None:
    with pytest.raises(ConfigError, match=r"wanted|at most") as fault:
        divide_budget(LIBRARY, program("smollm2"), config, 0)
    assert fault.value.setting == setting


def ledger_of(limit: int) -> Ledger:
    return Ledger(limit, 30 * MIB, default_margin_bytes(limit))


def start(name: str, config: Config, limit: int) -> None:
    """Divides a whole budget as the daemon does; raises BudgetError."""
    ledger = ledger_of(limit)
    layout = divide_budget(LIBRARY, program(name), config, ledger.remaining())
    grant_layout(layout, program(name), ledger)
    assert ledger.remaining() >= 0


@pytest.mark.parametrize("config", [Config(), Config(context=500), Config(max_requests=21)])
@pytest.mark.parametrize("name", SHAPES)
def test_the_budget_that_an_error_names_really_works(name: str, config: Config) -> None:
    with pytest.raises(BudgetError, match="largest term is process base") as fault:
        start(name, config, 8 * MIB)
    wanted = re.search(r"wanted --budget (\w+)", str(fault.value))
    assert wanted is not None
    start(name, config, parse_size(wanted[1]))


def test_the_budget_named_for_a_long_context_really_works() -> None:
    config = Config(context=8192)
    with pytest.raises(BudgetError, match=r"largest term is KV cache; terms: KV cache 180\.0 MiB") as fault:
        start("smollm2", config, 128 * MIB)
    wanted = re.search(r"wanted --budget (\w+)", str(fault.value))
    assert wanted is not None
    start("smollm2", config, parse_size(wanted[1]))


def test_the_context_that_an_error_names_really_works() -> None:
    with pytest.raises(BudgetError) as fault:
        start("smollm2", Config(context=8192), 128 * MIB)
    context = re.search(r"--context (\d+)", str(fault.value))
    assert context is not None
    assert int(context[1]) >= 1024
    start("smollm2", Config(context=int(context[1])), 128 * MIB)


def test_a_sweep_of_whole_budgets_either_starts_or_is_refused_with_the_numbers() -> None:
    refused = 0
    for limit in range(32 * MIB, 96 * MIB, 512 * KIB):
        try:
            start("smollm2", Config(), limit)
        except BudgetError:
            assert refused * 512 * KIB == limit - 32 * MIB, "a larger budget was refused after a smaller one had done"
            refused += 1
    assert 0 < refused < 100
