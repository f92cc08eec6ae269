"""The engine over the NumPy twin: asked for by name, or because the kernel library is not there."""

from __future__ import annotations

import logging
import queue
import subprocess
import sys
from pathlib import Path

import pytest

from sipd.config import Config
from sipd.engine.build import build_engine
from sipd.engine.request import FinishReason, Outcome, Request, SampledToken
from sipd.engine.sampling import SamplingOptions
from sipd.errors import SipdError
from sipd.kernels import binding, reference_library
from sipd.memory import open_ledger
from sipd.weights.checkpoint import open_checkpoint
from sipd.weights.tensor_table import QuantType
from tests.builders import build_gguf
from tests.unit.kernels.kernel_calls import LIBRARY

SAMPLING = SamplingOptions(
    temperature=0.9, top_p=0.95, min_p=0.01, repetition_penalty=1.1, frequency_penalty=0.1, logit_bias=((3, 1.5),),
    seed=5, logprobs=3,
)  # fmt: skip


class Collector:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.tokens: list[SampledToken] = []
        self.outcomes: queue.Queue[Outcome] = queue.Queue()

    def started(self) -> None:
        """Nothing to do."""

    def token(self, token: SampledToken) -> bool:
        self.tokens.append(token)
        return False

    def finished(self, outcome: Outcome) -> None:
        self.outcomes.put(outcome)


def generate(path: Path, isa: str) -> tuple[str, list[SampledToken]]:
    """The name of the kernels and what they generated."""
    config = Config(model=path, isa=isa, budget=1 << 30, threads=1, context=256)
    engine = build_engine(config, open_checkpoint(path), open_ledger(1 << 30))
    try:
        sink = Collector()
        engine.submit(Request("r", tuple(range(20)), 12, SAMPLING, sink))
        outcome = sink.outcomes.get(timeout=60)
        assert outcome.reason is FinishReason.LENGTH, outcome.error
        return engine.isa, sink.tokens
    finally:
        engine.stop()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return build_gguf(tmp_path / "m.gguf", quant=QuantType.Q4_0, vocab_size=200)


def test_the_twin_generates_what_the_kernels_generate(model: Path) -> None:
    assert generate(model, "numpy") == ("numpy", generate(model, "auto")[1])


def test_without_the_library_the_twin_takes_its_place_and_says_so(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = generate(model, "auto")[1]
    monkeypatch.setattr(binding, "library_path", lambda: model.with_name("_native.so"))
    with caplog.at_level(logging.WARNING, "sipd.engine"):
        assert generate(model, "auto") == ("numpy", wanted)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert "computing with NumPy" in lines[0]


def test_without_the_library_a_named_instruction_set_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "library_path", lambda: model.with_name("_native.so"))
    with pytest.raises(SipdError, match="cannot be loaded"):
        generate(model, "portable")


def test_the_twin_keeps_the_contract_of_the_library() -> None:
    assert LIBRARY.sipd_contract_version() == reference_library.CONTRACT_VERSION


def test_numpy_is_not_imported_unless_it_computes() -> None:
    code = "import sipd.engine.build, sys; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
