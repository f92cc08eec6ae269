"""Whole passes over tiny models: the kernels against the NumPy twin, and every setting that must not change a bit."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from sipd.engine import executor
from sipd.engine.executor import Executor
from sipd.errors import StorageFault
from sipd.kernels import binding
from sipd.models.forward import Forward
from sipd.weights import plain_source
from sipd.weights.probe import ProbeResult
from sipd.weights.reader import read_exact
from sipd.weights.stream import Stream, shape_stream, shrink_shape
from sipd.weights.tensor_table import QuantType
from tests.builders import build_gguf, build_safetensors
from tests.unit.kernels.kernel_calls import F32, ISAS, assert_same_bits
from tests.unit.kernels.loaded_model import PAGES, LoadedModel, Setting, set_cancel, tokens_of

TWIN = Setting(isa="numpy")
# a tokens-and-weights shape that leaves panels, groups of rows and tiles unfinished; K types want multiples of 256
SMALL: dict[str, Any] = {"d_model": 96, "n_heads": 6, "n_kv_heads": 2, "d_ff": 160, "vocab_size": 203}
WIDE: dict[str, Any] = {"d_model": 256, "n_heads": 4, "n_kv_heads": 2, "d_ff": 512, "vocab_size": 131, "n_layers": 1}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-tied": {"tied": True},
    "llama-rope-freqs": {"rope_freqs": True},
    "llama-head-dim-80": {"head_dim": 80},
    "llama-bias": {"qkv_bias": True},
    "llama-partly-rotated": {"metadata": {"llama.rope.dimension_count": 8}},
    "llama-as-many-key-heads": {"n_kv_heads": 6},
    "llama-one-key-head": {"n_kv_heads": 1},
    "qwen2": {"arch": "qwen2"},
    "qwen2-tied": {"arch": "qwen2", "tied": True},
}


def shape_for(quant_type: QuantType) -> dict[str, Any]:
    return WIDE if quant_type.block_size == 256 else SMALL


def logits(path: Path, setting: Setting, n: int = 40, chunk: int = 0, last: int = 3) -> F32:
    with LoadedModel(path, setting) as model:
        vocab_size = model.program.hyperparameters.vocab_size
        return model.prompt_logits(tokens_of(n, vocab_size), chunk, last=last)


@pytest.mark.parametrize("quant_type", list(QuantType))
def test_the_kernels_equal_the_twin_for_every_quant_type(tmp_path: Path, quant_type: QuantType) -> None:
    path = build_gguf(tmp_path / "m.gguf", quant=quant_type, **shape_for(quant_type))
    wanted = logits(path, TWIN)
    assert np.isfinite(wanted).all()
    assert wanted.std() > 0.1
    for isa in ISAS:
        for pin in (0.0, 1.0):
            assert_same_bits(logits(path, Setting(isa=isa, pin=pin)), wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("quant_type", [QuantType.F16, QuantType.Q4_1])
def test_the_kernels_equal_the_twin_for_every_family(tmp_path: Path, kind: str, quant_type: QuantType) -> None:
    path = build_gguf(tmp_path / "m.gguf", quant=quant_type, **(SMALL | KINDS[kind]))
    wanted = logits(path, TWIN)
    for isa in ISAS:
        for tile_bytes in (1 << 20, 4096):  # whole matrices, and biases that must follow their tiles
            assert_same_bits(logits(path, Setting(isa=isa, tile_bytes=tile_bytes)), wanted)
    assert_same_bits(logits(path, replace(TWIN, tile_bytes=4096)), wanted)


@pytest.mark.parametrize("dtype", [QuantType.F32, QuantType.BF16])
def test_the_kernels_equal_the_twin_on_a_sharded_checkpoint(tmp_path: Path, dtype: QuantType) -> None:
    path = build_safetensors(tmp_path / "hf", arch="qwen2", dtype=dtype, n_shards=3, **SMALL)
    wanted = logits(path, TWIN)
    for isa in ISAS:
        assert_same_bits(logits(path, Setting(isa=isa, pin=0.5, tile_bytes=4096)), wanted)


def test_types_may_differ_from_tensor_to_tensor(tmp_path: Path) -> None:
    roles = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "output", "token_embd")
    types = [t for t in QuantType if t.block_size < 256] * 2
    by_role = dict(zip(roles, types, strict=False))
    path = build_gguf(tmp_path / "m.gguf", quant_by_role=by_role, **SMALL)
    wanted = logits(path, TWIN)
    for isa in ISAS:
        assert_same_bits(logits(path, Setting(isa=isa, pin=0.5, tile_bytes=4096)), wanted)


SETTINGS = {
    "tiles-of-4K": Setting(tile_bytes=4096),
    "tiles-of-9K": Setting(tile_bytes=9000, slots=5, readers=4),
    "one-reader": Setting(tile_bytes=4096, readers=1),
    "two-threads": Setting(threads=2, tile_bytes=4096),
    "three-threads": Setting(threads=3),
    "half-pinned": Setting(pin=0.5, tile_bytes=4096, slots=4),
    "all-pinned": Setting(pin=1.0, tile_bytes=16384, threads=2),
    "all-pinned-with-embedding": Setting(pin=1.0, tile_bytes=16384, embedding_tiles=True),
    "direct": Setting(direct="auto", tile_bytes=4096),
    "direct-half-pinned": Setting(direct="auto", tile_bytes=8192, pin=0.5, threads=2),
    "numpy-half-pinned": Setting(isa="numpy", pin=0.5, tile_bytes=4096),
    "numpy-resident": Setting(isa="numpy", pin=1.0, embedding_tiles=True),
    "numpy-direct": Setting(isa="numpy", direct="auto", tile_bytes=8192),
}


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("quant_type", [QuantType.Q8_0, QuantType.Q5_1, QuantType.F32])
def test_no_setting_changes_a_bit(tmp_path: Path, name: str, quant_type: QuantType, *, tied: bool) -> None:
    path = build_gguf(tmp_path / "m.gguf", quant=quant_type, tied=tied, **SMALL)
    plain = logits(path, Setting(isa="portable"), n=50)
    setting = SETTINGS[name]
    isas = ISAS if setting.isa == "auto" else [setting.isa]
    for isa in isas:
        with LoadedModel(path, replace(setting, isa=isa)) as model:
            for _ in range(3):  # later passes meet what was pinned, repacked and read ahead
                assert_same_bits(model.prompt_logits(tokens_of(50, 203), last=3), plain)


@pytest.mark.parametrize("isa", [*ISAS, "numpy"])
@pytest.mark.parametrize("quant_type", [QuantType.Q4_0, QuantType.BF16])
def test_one_pass_chunks_of_seven_and_single_tokens_give_the_same_bits(
    tmp_path: Path, isa: str, quant_type: QuantType
) -> None:
    path = build_gguf(tmp_path / "m.gguf", quant=quant_type, **SMALL)
    setting = Setting(isa=isa, tile_bytes=8192)
    whole = logits(path, setting, n=64, last=16)
    for chunk in (1, 7, 33):
        assert_same_bits(logits(path, setting, n=64, chunk=chunk, last=16), whole)


@pytest.mark.parametrize("isa", [*ISAS, "numpy"])
@pytest.mark.parametrize("quant_type", [QuantType.Q4_1, QuantType.F16])
def test_neighbours_in_the_pass_change_nothing(tmp_path: Path, isa: str, quant_type: QuantType) -> None:
    path = build_gguf(tmp_path / "m.gguf", quant=quant_type, **SMALL)
    prompts = [tokens_of(n, 203, seed=n) for n in (37, 9, 3, 1)]
    setting = Setting(isa=isa, threads=2 if isa != "numpy" else 1)
    with LoadedModel(path, setting) as model:
        rows = [
            (token, position, sequence, sequence if position == len(prompt) - 1 else -1)
            for sequence, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        model.run(rows)
        together = model.logits(4)
        # then one token each: sequences of different lengths share a pass
        model.run([(5, len(prompt), sequence, sequence) for sequence, prompt in enumerate(prompts)])
        together_next = model.logits(4)
    for sequence, prompt in enumerate(prompts):
        with LoadedModel(path, setting) as model:
            assert_same_bits(model.prompt_logits(prompt)[0], together[sequence])
            assert_same_bits(model.prompt_logits([*prompt, 5])[0], together_next[sequence])


def test_gguf_and_checkpoint_of_the_same_weights_give_logits_that_agree(tmp_path: Path) -> None:
    gguf = build_gguf(tmp_path / "m.gguf", **SMALL)
    checkpoint = build_safetensors(tmp_path / "hf", **SMALL)
    np.testing.assert_allclose(logits(checkpoint, Setting()), logits(gguf, Setting()), atol=2e-4)


@pytest.mark.parametrize("isa", [*ISAS, "numpy"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_streamed_bytes_are_the_unpinned_bytes_of_the_plan_and_the_rows_embedded(
    tmp_path: Path, isa: str, *, tied: bool
) -> None:
    path = build_gguf(tmp_path / "m.gguf", quant=QuantType.Q8_0, tied=tied, **SMALL)
    for pin in (0.0, 0.5, 1.0):
        with LoadedModel(path, Setting(isa=isa, pin=pin, tile_bytes=4096)) as model:
            rows = [(token, position, 0, position - 8) for position, token in enumerate(tokens_of(9, 203))]
            rows = [row if row[3] == 0 else (*row[:3], -1) for row in rows]
            results = [model.run(rows) for _ in range(3)]
            plan = model.plan
            unpinned = sum(e.weight_bytes for i, e in enumerate(plan.extents) if i not in model.pinned)
            begin, end = plan.group_tiles[-1]
            row_bytes = model.program.head.row_bytes
            head = sum(t.n_rows * row_bytes for t in plan.tiles[begin:end] if t.extent not in model.pinned)
            first, *later = results
            assert first.streamed_bytes - first.embedding_bytes == plan.pass_bytes
            for result in later:
                assert result.streamed_bytes - result.embedding_bytes == unpinned
                assert result.head_bytes == head
                assert result.embedding_bytes <= 9 * row_bytes
                if not tied or pin == 0.0:
                    assert result.embedding_bytes == 9 * row_bytes
                elif pin == 1.0:
                    assert result.embedding_bytes == 0


@pytest.mark.parametrize("isa", [*ISAS, "numpy"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("slots", [3, 64])
def test_passes_inside_a_prompt_stream_no_head(tmp_path: Path, isa: str, slots: int, *, tied: bool) -> None:
    path = build_gguf(tmp_path / "m.gguf", quant=QuantType.Q8_0, tied=tied, **SMALL)
    tokens = tokens_of(45, 203)
    wanted = logits(path, Setting(isa=isa), n=45, last=1)
    for pin in (0.0, 0.5):
        with LoadedModel(path, Setting(isa=isa, pin=pin, tile_bytes=4096, slots=slots)) as model:
            plan = model.plan
            unpinned = sum(e.weight_bytes for i, e in enumerate(plan.extents) if i not in model.pinned)
            begin, end = plan.group_tiles[-1]
            row_bytes = model.program.head.row_bytes
            head = sum(t.n_rows * row_bytes for t in plan.tiles[begin:end] if t.extent not in model.pinned)
            assert head > 0
            assert_same_bits(model.prompt_logits(tokens), wanted)  # the first pass to meet a pinned tile pays for it
            results = [
                model.run([(tokens[p], p, 0, 0 if p == 44 else -1) for p in range(at, at + 15)]) for at in (0, 15, 30)
            ]
            assert_same_bits(model.logits(1), wanted)
            streamed = [result.streamed_bytes - result.embedding_bytes for result in results]
            assert streamed == [unpinned - head, unpinned - head, unpinned]
            assert [result.head_bytes for result in results] == [0, 0, head]


@pytest.mark.parametrize("isa", [*ISAS, "numpy"])
def test_a_read_that_holds_the_last_block_and_some_of_the_head_is_given_back_without_the_head(
    tmp_path: Path, isa: str
) -> None:
    path = build_gguf(tmp_path / "m.gguf", quant=QuantType.Q8_0, n_layers=1, **SMALL)
    tokens = tokens_of(45, 203)
    wanted = logits(path, Setting(isa="portable"), n=45, last=1)
    n_mixed = 0
    for tile_bytes in range(4096, 90_000, 5120):
        with LoadedModel(path, Setting(isa=isa, tile_bytes=tile_bytes, slots=3)) as model:
            tiles, (begin, _) = model.plan.tiles, model.plan.group_tiles[-1]
            n_mixed += tiles[begin].extent == tiles[begin - 1].extent
            for chunk in (15, 45, 1):
                assert_same_bits(model.prompt_logits(tokens, chunk), wanted)
    assert n_mixed, "no plan of these has such a read"


@pytest.mark.parametrize("isa", [*ISAS, "numpy"])
def test_a_cancelled_pass_ends_early_and_the_next_one_is_right(tmp_path: Path, isa: str) -> None:
    path = build_gguf(tmp_path / "m.gguf", quant=QuantType.Q8_0, n_layers=3, **SMALL)
    tokens = tokens_of(20, 203)
    wanted = logits(path, Setting(isa=isa), n=20, last=1)
    with LoadedModel(path, Setting(isa=isa)) as model:
        rows = [(token, position, 0, 0 if position == 19 else -1) for position, token in enumerate(tokens)]
        set_cancel(model.forward, 1)
        result = model.forward.run(rows, 1, PAGES)
        assert result.status == binding.PASS_CANCELLED
        assert model.forward.control.steps == 1
        set_cancel(model.forward, 0)
        model.source.rewind()
        assert_same_bits(model.prompt_logits(tokens), wanted)
        assert model.forward.control.layer == -1


# --- the twin's own source of weights, under the executor ---


def executor_of(model: LoadedModel) -> Executor:
    forward, source = cast("Forward", model.forward), cast("Stream", model.source)
    return Executor(forward, source, streamed_plan_bytes=0, pinned_bytes=0, contract=1, probe=ProbeResult())


class FailingReads:
    """read_exact, but the first reads fail with an errno."""

    def __init__(self, error_number: int, n_failures: int) -> None:
        self.error_number = error_number
        self.n_left = n_failures

    def __call__(self, fd: int, offset: int, length: int) -> bytes:
        if self.n_left:
            self.n_left -= 1
            raise OSError(self.error_number, "injected")
        return read_exact(fd, offset, length)


@pytest.mark.parametrize(("error_number", "direct"), [(errno.EIO, "off"), (errno.EINVAL, "auto")])
def test_a_pass_of_the_twin_outlives_reads_that_fail_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error_number: int, direct: str
) -> None:
    path = build_gguf(tmp_path / "m.gguf", quant=QuantType.Q8_0, **SMALL)
    wanted = logits(path, TWIN, n=1, last=1)
    monkeypatch.setattr(executor, "RETRY_PAUSES_S", (0.0, 0.0, 0.0))
    with LoadedModel(path, replace(TWIN, direct=direct)) as model:
        was_direct = model.source.uses_direct_io
        failing = FailingReads(error_number, 2 if direct == "off" else int(was_direct))
        monkeypatch.setattr(plain_source, "read_exact", failing)
        result = executor_of(model).run([(tokens_of(1, 203)[0], 0, 0, 0)], 1, PAGES, lambda: False)
        assert result.is_done
        assert failing.n_left == 0
        assert not model.source.uses_direct_io or not was_direct
        assert_same_bits(model.logits(1), wanted)


def test_reads_that_go_on_failing_end_the_pass_with_the_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build_gguf(tmp_path / "m.gguf", quant=QuantType.Q8_0, **SMALL)
    monkeypatch.setattr(executor, "RETRY_PAUSES_S", (0.0,))
    with LoadedModel(path, TWIN) as model:
        monkeypatch.setattr(plain_source, "read_exact", FailingReads(errno.EIO, 1000))
        with pytest.raises(StorageFault, match="read failed with EIO"):
            executor_of(model).run([(0, 0, 0, 0)], 1, PAGES, lambda: False)


def test_the_twin_tells_where_a_file_ended_early(tmp_path: Path) -> None:
    path = build_gguf(tmp_path / "m.gguf", quant=QuantType.Q8_0, **SMALL)
    with LoadedModel(path, TWIN) as model:
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.truncate(size // 2)
        result = model.forward.run([(0, 0, 0, 0)], 1, PAGES)
        assert result.status == binding.PASS_FAULT
        found = model.source.fault()
        assert found is not None
        fault, error_number = found
        assert error_number == 0
        assert str(path) in str(fault)
        assert "ends early" in str(fault)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("embedding_tiles", [True, False])
@pytest.mark.parametrize("isa", ISAS)
def test_pins_given_up_and_taken_back_change_no_bit(
    tmp_path: Path, isa: str, *, embedding_tiles: bool, tied: bool
) -> None:
    path = build_gguf(tmp_path / "m.gguf", quant=QuantType.Q8_0, tied=tied, **SMALL)
    tokens = tokens_of(20, 203)
    wanted = logits(path, Setting(isa=isa), n=20)
    setting = Setting(isa=isa, pin=1.0, tile_bytes=4096, embedding_tiles=embedding_tiles)
    with LoadedModel(path, setting) as model:
        plan = model.plan
        first = shape_stream(plan, model.pinned, setting.slots, setting.readers)
        keep: frozenset[int] = frozenset()
        if embedding_tiles and not tied:
            keep = frozenset(tile.extent for tile in plan.tiles[slice(*plan.group_tiles[0])])
        half = shrink_shape(plan, first, first.pin_bytes // 2, 3, keep)
        none = shrink_shape(plan, first, 2 * first.pin_bytes, 3, keep)
        assert len(first.pin_offsets) > len(half.pin_offsets) > len(none.pin_offsets) == len(keep)
        assert isinstance(model.source, Stream)
        assert isinstance(model.forward, Forward)
        for shape in (first, half, none, first, none, half):
            model.source.repin(shape)
            model.forward.repinned()
            for _ in range(2):
                assert_same_bits(model.prompt_logits(tokens, last=3), wanted)
            pinned = frozenset(shape.pin_offsets)
            unpinned = sum(e.weight_bytes for i, e in enumerate(plan.extents) if i not in pinned)
            result = model.run([(tokens[0], 0, 0, 0)])
            assert result.streamed_bytes - result.embedding_bytes == unpinned
