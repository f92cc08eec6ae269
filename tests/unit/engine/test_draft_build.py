"""Draft models from files: granted, loaded, refused; and their drafts against a target that is the same model."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sipd.config import Config
from sipd.engine.draft_build import build_draft_model, open_draft_plan
from sipd.engine.draft_model import DraftAsk, DraftModel
from sipd.engine.request import Request
from sipd.engine.sampler import Sampler
from sipd.engine.sampling import SamplingOptions
from sipd.errors import BudgetError, ConfigError, ModelError
from sipd.kernels import binding
from sipd.memory import Ledger
from sipd.models.program import Program
from sipd.models.registry import build_program
from sipd.models.small_tensors import read_f32
from sipd.weights.checkpoint import open_checkpoint
from sipd.weights.reader import WeightFiles
from sipd.weights.tensor_table import QuantType
from tests.builders import build_gguf, build_safetensors
from tests.engines import PLENTY, Listener, ask, running

if TYPE_CHECKING:
    Logits = ctypes._Pointer[ctypes.c_float]

VOCAB_SIZE = 320
PROMPT = [5, 17, 99, 4, 250, 31]
CONFIG = Config(threads=1, context=256, tile_bytes=4096, readers=2, max_requests=4)
DEADLINE_S = 30.0


def greedy(logits: Logits, _i: int) -> int:
    """The token of the largest logit."""
    return max(range(VOCAB_SIZE), key=logits.__getitem__)


def program_of(path: Path, library: ctypes.CDLL) -> Program:
    """The program of a model file."""
    checkpoint = open_checkpoint(path)
    files = WeightFiles(checkpoint.files, checkpoint.file_sizes, direct="off")
    try:
        return build_program(checkpoint, lambda tensor: list(read_f32(library, files, tensor)))
    finally:
        files.close()


def build(path: Path, target: Path, ledger: Ledger, **values: Any) -> DraftModel | None:  # noqa: ANN401 - any setting
    """A draft model, still loading."""
    library = binding.load_library()
    config = replace(CONFIG, model=target, draft_model=path, **values)
    return build_draft_model(config, open_checkpoint(target), program_of(target, library), ledger, library, 1)


@contextmanager
def drafting(path: Path, target: Path | None = None, **values: Any) -> Iterator[DraftModel]:  # noqa: ANN401 - any setting
    """A loaded draft model."""
    model = build(path, target or path, Ledger(PLENTY, 0, 0), **values)
    assert model is not None
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not model.is_ready():
            assert time.monotonic() < deadline, "the draft model is not loaded in time"
            threading.Event().wait(0.001)
        yield model
    finally:
        model.close()


def test_the_stacks_of_many_readers_are_part_of_what_its_weights_cost(tmp_path: Path) -> None:
    path = build_gguf(tmp_path / "m.gguf")
    library = binding.load_library()
    target = open_checkpoint(path)
    few, many = (
        open_draft_plan(
            replace(CONFIG, draft_model=path, readers=n), target, program_of(path, library), library, n_threads=1
        )
        for n in (8, 64)
    )
    assert few is not None
    assert many is not None
    assert many.layout(PLENTY).weight_bytes - few.layout(PLENTY).weight_bytes == 56 * 16 * 1024


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_every_draft_of_a_model_for_itself_is_right(tmp_path: Path, arch: str, *, is_tied: bool) -> None:
    path = build_gguf(tmp_path / "a.gguf", arch=arch, tied=is_tied, quant=QuantType.Q8_0, d_ff=128)
    with running(path) as engine:
        said, _ = ask(engine, PROMPT, 24)
    with drafting(path) as model:
        for at in range(0, 24, 4):
            assert model.draft("a", PROMPT + said[:at], 4, greedy) == said[at : at + 4]


def test_drafts_drawn_at_a_temperature_are_what_the_target_samples(tmp_path: Path) -> None:
    path = build_gguf(tmp_path / "a.gguf")
    options = SamplingOptions(temperature=1.0, seed=7)
    with running(path) as engine:
        said, _ = ask(engine, PROMPT, 12, options)
    sampler = Sampler(binding.load_library(), VOCAB_SIZE)
    request = Request("r", tuple(PROMPT), 12, options, Listener())

    def draw(logits: Logits, _i: int) -> int:
        token = sampler.draw(request, logits).token_id
        request.output_ids.append(token)
        return token

    with drafting(path) as model:
        assert model.draft("a", PROMPT, 12, draw) == said


def test_a_safetensors_checkpoint_drafts_for_the_same_weights_in_a_gguf_file(tmp_path: Path) -> None:
    target = build_gguf(tmp_path / "a.gguf")
    draft = build_safetensors(tmp_path / "b")
    with running(target) as engine:
        said, _ = ask(engine, PROMPT, 8)
    with drafting(draft, target) as model:
        assert model.draft("a", PROMPT, 8, greedy) == said


def test_drafts_after_a_rejected_one_and_beside_others_are_those_of_a_fresh_model(tmp_path: Path) -> None:
    path = build_gguf(tmp_path / "a.gguf", quant=QuantType.Q4_0, d_ff=128)
    ids = {key: [key, 17, 99] for key in range(4)}
    with drafting(path) as model:
        first = model.draft_many([DraftAsk(key, each, 4, greedy) for key, each in ids.items()])
        for key, drafts in zip(ids, first, strict=True):
            ids[key] = [*ids[key], *drafts[:key], (drafts[key] + 1) % VOCAB_SIZE]
        second = model.draft_many([DraftAsk(key, each, 4, greedy) for key, each in ids.items()])
    with drafting(path) as fresh:
        assert [fresh.draft(object(), each, 4, greedy) for each in ids.values()] == second


def test_a_long_prompt_is_caught_up_with_over_several_calls(tmp_path: Path) -> None:
    path = build_gguf(tmp_path / "a.gguf")
    prompt = [(7 * i) % VOCAB_SIZE for i in range(200)]
    with running(path) as engine:
        said, _ = ask(engine, prompt, 4)
    with drafting(path) as model:
        calls = [model.draft("a", prompt, 4, greedy) for _ in range(14)]
    assert calls[0] == []
    assert calls[-1] == said


@pytest.mark.parametrize(
    "values", [{"draft_model": None}, {"speculation": False}, {"draft_tokens": 0}, {"isa": "numpy"}]
)
def test_no_memory_is_granted_where_no_drafts_are_wanted(tmp_path: Path, values: dict[str, Any]) -> None:
    path = build_gguf(tmp_path / "a.gguf")
    ledger = Ledger(PLENTY, 0, 0)
    library = binding.load_library()
    config = replace(CONFIG, **({"draft_model": path} | values))
    model = build_draft_model(config, open_checkpoint(path), program_of(path, library), ledger, library, 1)
    assert (model, ledger.granted()) == (None, 0)


def test_every_part_is_granted_by_name(tmp_path: Path) -> None:
    path = build_gguf(tmp_path / "a.gguf")
    ledger = Ledger(PLENTY, 0, 0)
    model = build(path, path, ledger)
    assert model is not None
    model.close()
    granted = {term.name: term.n_bytes for term in ledger.terms()}
    assert granted["draft weights"] >= sum(tensor.n_bytes for tensor in open_checkpoint(path).tensors.values())
    assert granted["draft KV"] == 4 * 256 // 32 * 2 * 4 * 32 * 32
    assert granted["draft activations"] > 0


def test_a_draft_model_that_does_not_fit_is_refused_with_its_size(tmp_path: Path) -> None:
    path = build_gguf(tmp_path / "a.gguf")
    with pytest.raises(BudgetError, match=r"cannot hold draft weights of .*wanted --budget .*or no --draft-model"):
        build(path, path, Ledger(100_000, 0, 0))


def test_keys_and_values_take_a_small_share_of_a_small_budget_and_one_window_at_least(tmp_path: Path) -> None:
    path = build_gguf(tmp_path / "a.gguf", context_length=4096)
    library = binding.load_library()
    config = replace(CONFIG, context=4096, draft_model=path)
    plan = open_draft_plan(config, open_checkpoint(path), program_of(path, library), library, 1)
    assert plan is not None
    layouts = [plan.layout(n_bytes) for n_bytes in (0, 8 << 20, 16 << 20, 1 << 30)]
    assert [layout.window for layout in layouts] == sorted(layout.window for layout in layouts)
    assert (layouts[0].window, layouts[-1].window) == (256, 1024)
    assert layouts[-1].forward.n_pages == 4 * 1024 // 32


@pytest.mark.parametrize("is_tied", [True, False])
def test_the_embedding_stays_in_memory_too(tmp_path: Path, *, is_tied: bool) -> None:
    path = build_gguf(tmp_path / "a.gguf", tied=is_tied)
    library = binding.load_library()
    config = replace(CONFIG, draft_model=path)
    plan = open_draft_plan(config, open_checkpoint(path), program_of(path, library), library, 1)
    assert plan is not None
    assert "token_embd.weight" in {tensor.name for tensor in plan.plan.matrices}
    assert len(plan.stream.pin_offsets) == len(plan.plan.extents)


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    target = build_gguf(tmp_path / "a.gguf", with_vocab="gpt2")
    ledger = Ledger(PLENTY, 0, 0)
    with pytest.raises(ConfigError, match=r"draft_model: .* has a vocabulary of kind 'llama'"):
        build(build_gguf(tmp_path / "b.gguf", with_vocab="spm"), target, ledger)
    assert ledger.granted() == 0


def test_a_draft_model_that_is_no_model_is_refused_by_its_path(tmp_path: Path) -> None:
    target = build_gguf(tmp_path / "a.gguf")
    (tmp_path / "b.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"b\.gguf"):
        build(tmp_path / "b.gguf", target, Ledger(PLENTY, 0, 0))
