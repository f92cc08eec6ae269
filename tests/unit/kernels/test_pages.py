"""KV pages as bytes: read, copied and put back, the same on every executor; no row reads past its own position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sipd.models.forward import page_bytes
from sipd.weights.tensor_table import QuantType
from tests.builders import build_gguf
from tests.unit.kernels.kernel_calls import ISAS, assert_same_bits
from tests.unit.kernels.loaded_model import N_PAGES, PAGES, LoadedModel, Setting, tokens_of

SHAPE: dict[str, Any] = {"d_model": 96, "n_heads": 6, "n_kv_heads": 2, "d_ff": 160, "vocab_size": 203}
EXECUTORS = [*ISAS, "numpy"]
NANS = (b"\x00\x7e", b"\x00\x7c", b"\x00\xfc", b"\xff\xff")  # binary16: NaN, infinities, NaN with all bits


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return build_gguf(tmp_path / "m.gguf", quant=QuantType.Q8_0, **SHAPE)


def pages_of(model: LoadedModel, sequence: int, n: int) -> list[bytes]:
    return [bytes(model.forward.page(page)) for page in PAGES[sequence][:n]]


@pytest.mark.parametrize("isa", EXECUTORS)
@pytest.mark.parametrize("garbage", NANS)
def test_what_lies_past_a_rows_position_in_a_page_changes_nothing(path: Path, isa: str, garbage: bytes) -> None:
    tokens = tokens_of(45, 203)
    with LoadedModel(path, Setting(isa=isa)) as model:
        wanted = model.prompt_logits(tokens, last=10)
    with LoadedModel(path, Setting(isa=isa)) as model:
        for page in range(N_PAGES):
            view = model.forward.page(page)
            view[:] = garbage * (len(view) // 2)
        assert_same_bits(model.prompt_logits(tokens, last=10), wanted)
        for chunk in (1, 7):
            for page in PAGES[0]:
                view = model.forward.page(page)
                view[:] = garbage * (len(view) // 2)
            assert_same_bits(model.prompt_logits(tokens, chunk, last=10), wanted)


@pytest.mark.parametrize("isa", EXECUTORS)
def test_a_page_is_the_kernels_own_memory_and_as_long_as_the_ledger_granted(path: Path, isa: str) -> None:
    with LoadedModel(path, Setting(isa=isa)) as model:
        view = model.forward.page(0)
        assert len(view) == view.nbytes == page_bytes(model.program)
        assert not view.readonly
        assert not any(view)
        model.prompt_logits(tokens_of(3, 203))
        assert any(view)
        assert not any(model.forward.page(1))


@pytest.mark.parametrize("isa", EXECUTORS)
def test_a_copied_page_goes_on_like_the_first(path: Path, isa: str) -> None:
    tokens = tokens_of(50, 203)
    with LoadedModel(path, Setting(isa=isa)) as model:
        wanted = model.prompt_logits(tokens)[0]
        for source, target in zip(PAGES[0][:2], PAGES[1][:2], strict=True):
            model.forward.copy_page(source, target)
        assert pages_of(model, 1, 2) == pages_of(model, 0, 2)
        model.run([(tokens[-1], 49, 1, 0)])
        assert_same_bits(model.logits(1)[0], wanted)


def test_pages_of_one_executor_serve_every_other(path: Path) -> None:
    tokens = tokens_of(50, 203)
    with LoadedModel(path, Setting(isa="portable")) as model:
        wanted = model.prompt_logits(tokens)[0]
        saved = pages_of(model, 0, 2)
        layout = model.forward.kv_layout
    for isa in EXECUTORS:
        with LoadedModel(path, Setting(isa=isa)) as model:
            assert model.forward.kv_layout == layout
            for page, content in zip(PAGES[2], saved, strict=True):
                model.forward.page(page)[:] = content
            model.run([(tokens[-1], 49, 2, 0)])
            assert_same_bits(model.logits(1)[0], wanted)
            assert pages_of(model, 2, 2) == saved


@pytest.mark.parametrize("isa", EXECUTORS)
def test_a_page_that_does_not_exist_is_refused(path: Path, isa: str) -> None:
    with LoadedModel(path, Setting(isa=isa)) as model:
        for index in (-1, N_PAGES):
            with pytest.raises(IndexError, match=f"{index}"):
                model.forward.page(index)
            with pytest.raises(IndexError):
                model.forward.copy_page(0, index)
            with pytest.raises(IndexError):
                model.forward.copy_page(index, 0)
