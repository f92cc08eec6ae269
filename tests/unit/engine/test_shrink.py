"""An engine that gives pinned weights back: the same tokens, and the ledger follows."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from sipd.config import Config
from sipd.engine.build import build_engine
from sipd.engine.loop import Engine
from sipd.engine.request import Request
from sipd.engine.sampling import SamplingOptions
from sipd.memory import Ledger, MemoryLimit
from sipd.weights.checkpoint import open_checkpoint
from sipd.weights.tensor_table import QuantType
from tests.builders import build_gguf
from tests.hostile.storage_driver import Sink

CONFIG = Config(threads=1, context=256, tile_bytes=4096, max_requests=2, direct_io="off", prefix_cache=False)
WAIT_S = 20.0


def tokens(engine: Engine) -> list[int]:
    sink = Sink(lambda _n: None)
    engine.submit(Request("r", tuple(range(5, 30)), 12, SamplingOptions(temperature=0.8, seed=1), sink))
    assert sink.outcomes.get(timeout=WAIT_S).error is None
    return sink.ids


def wait_until_fits(ledger: Ledger) -> None:
    deadline = time.monotonic() + WAIT_S
    while ledger.shortfall().n_bytes:
        assert time.monotonic() < deadline, ledger.table()


@pytest.mark.parametrize("tied", [True, False])
def test_memory_is_given_back_between_passes_and_no_token_changes(tmp_path: Path, *, tied: bool) -> None:
    model = build_gguf(tmp_path / "m.gguf", quant=QuantType.Q8_0, vocab_size=331, tied=tied)
    ledger = Ledger(1 << 26, 0, 0)
    engine = build_engine(replace(CONFIG, model=model), open_checkpoint(model), ledger)
    try:
        wanted = tokens(engine)
        before = engine.status()
        assert before.plan_bytes == 0
        granted = ledger.granted()
        ledger.relimit(MemoryLimit(granted - 30_000, "cgroup v2"))
        engine.shrink(lambda: ledger.shortfall().n_bytes)
        wait_until_fits(ledger)
        assert tokens(engine) == wanted
        after = engine.status()
        assert after.plan_bytes == before.pinned_bytes - after.pinned_bytes > 0
        engine.shrink(lambda: 0)
        assert tokens(engine) == wanted
        assert engine.status().pinned_bytes == after.pinned_bytes
        engine.shrink(lambda: 1 << 40)
        while engine.status().pinned_bytes == after.pinned_bytes:
            assert tokens(engine) == wanted
        assert tokens(engine) == wanted
    finally:
        engine.stop()
