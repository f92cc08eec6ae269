"""A real draft model: its memory stays in its grant, and a batch of sequences costs about a step of one."""

from __future__ import annotations

import ctypes
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sipd.config import Config
from sipd.engine.build import compute_threads
from sipd.engine.draft_build import build_draft_model
from sipd.engine.draft_model import DraftAsk, DraftModel
from sipd.kernels import binding
from sipd.memory import Ledger
from sipd.models.registry import build_program
from sipd.models.small_tensors import read_f32
from sipd.process_memory import read_anonymous_bytes
from sipd.weights.checkpoint import open_checkpoint
from sipd.weights.reader import WeightFiles
from tests.acceptance.conftest import Figure
from tests.acceptance.engines import ask, running_engine, settings
from tests.acceptance.prompts import Prompts

if TYPE_CHECKING:
    Logits = ctypes._Pointer[ctypes.c_float]

MIB = 1 << 20
N_SEQUENCES = 8
N_DRAFTS = 4
DEADLINE_S = 60.0


def drafts_of(model: DraftModel, ids: list[list[int]], vocab_size: int) -> list[list[int]]:
    """Greedy drafts for each sequence, once all have caught up."""

    def greedy(logits: Logits, _i: int) -> int:
        return int(np.argmax(np.ctypeslib.as_array(logits, shape=(vocab_size,))))

    deadline = time.monotonic() + DEADLINE_S
    while True:
        drafts = model.draft_many([DraftAsk(i, each, N_DRAFTS, greedy) for i, each in enumerate(ids)])
        if all(drafts):
            return drafts
        assert time.monotonic() < deadline, "no drafts in time"
        threading.Event().wait(0.001)


def test_a_model_drafts_for_itself_within_its_grant(smollm2: Path, prompts: Prompts, figure: Figure) -> None:
    prompt = list(prompts.varied()[0])
    with running_engine(settings(smollm2, context=512)) as engine:
        said = ask(engine, prompt, 32).ids
    library = binding.load_library()
    checkpoint = open_checkpoint(smollm2)
    files = WeightFiles(checkpoint.files, checkpoint.file_sizes, direct="off")
    program = build_program(checkpoint, lambda tensor: list(read_f32(library, files, tensor)))
    files.close()
    ledger = Ledger(1 << 30, 0, 0)
    config = replace(Config(), model=smollm2, draft_model=smollm2)
    before = read_anonymous_bytes()
    model = build_draft_model(config, checkpoint, program, ledger, library, compute_threads(None))
    assert model is not None
    try:
        for at in range(0, 32, N_DRAFTS):
            assert drafts_of(model, [prompt + said[:at]], program.hyperparameters.vocab_size) == [
                said[at : at + N_DRAFTS]
            ]
        alone = model.last_s
        ids = [[*prompt, *said[:i]] for i in range(N_SEQUENCES)]
        drafts_of(model, ids, program.hyperparameters.vocab_size)
        assert drafts_of(model, ids, program.hyperparameters.vocab_size) == [
            said[i : i + N_DRAFTS] for i in range(N_SEQUENCES)
        ]
        together = model.last_s
        taken = read_anonymous_bytes() - before
    finally:
        model.close()
    figure(
        f"draft model: {taken / MIB:.1f} MiB taken, {ledger.granted() / MIB:.1f} MiB granted; {N_DRAFTS} drafts for "
        f"one sequence {alone * 1e3:.1f} ms, for each of {N_SEQUENCES} {together * 1e3:.1f} ms"
    )
    assert taken <= ledger.granted() + 4 * MIB  # Python's own
    assert together < 0.7 * N_SEQUENCES * alone, "sequences one after another would do as well"
