"""Real passes over a tiny model: what must not change a request's tokens, and what a fault in a pass costs."""

from __future__ import annotations

import logging
import queue
import time
from pathlib import Path
from typing import Any

import pytest

from sipd.config import Config
from sipd.engine import executor as executor_module
from sipd.engine.build import build_engine
from sipd.engine.loop import MAX_FAILED_PASSES
from sipd.engine.request import FinishReason
from sipd.engine.sampling import SamplingOptions
from sipd.errors import BudgetError, ConfigError, DataLoss, EngineFault, StorageFault
from sipd.kernels import binding
from sipd.memory import Ledger
from sipd.models.forward import PassResult
from sipd.weights.checkpoint import open_checkpoint
from sipd.weights.tensor_table import QuantType
from tests.builders import build_gguf
from tests.engines import STREAMED, ask, running, submit
from tests.unit.engine.fake_executor import pass_result

SEEDED = SamplingOptions(temperature=0.8, seed=7)
PROMPT = tuple(range(5, 30))
NEIGHBOURS = (tuple(range(100, 140)), tuple(range(60, 62)), tuple(range(200, 290)))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_gguf(tmp_path_factory.mktemp("engine") / "m.gguf", quant=QuantType.Q8_0)


def test_the_same_seed_gives_the_same_text_alone_again_and_with_neighbours(model: Path) -> None:
    with running(model) as engine:
        alone, _ = ask(engine, PROMPT, 24, SEEDED)
        again, _ = ask(engine, PROMPT, 24, SEEDED)
        others = [submit(engine, prompt, 40, SamplingOptions(temperature=1.5, seed=i))[1] for i, prompt in
                  enumerate(NEIGHBOURS)]  # fmt: skip
        together, outcome = ask(engine, PROMPT, 24, SEEDED)
        for listener in others:
            assert listener.wait().error is None
        assert engine.status().total_rows > engine.status().n_passes  # they did share passes
    assert outcome.reason is FinishReason.LENGTH
    assert again == alone
    assert together == alone


def test_another_seed_gives_another_text(model: Path) -> None:
    with running(model) as engine:
        texts = {tuple(ask(engine, PROMPT, 24, SamplingOptions(temperature=0.8, seed=seed))[0]) for seed in range(4)}
    assert len(texts) == 4


SETTINGS: dict[str, dict[str, Any]] = {
    "resident": {"pin": True},
    "rows-4": {"rows_per_pass": 4},
    "two-threads": {"threads": 2},
    "one-reader": {"readers": 1, "ring_slots": 8},
    "large-tiles": {"tile_bytes": 1 << 20},
    "buffered": {"direct_io": "off"},
    "portable": {"isa": "portable"},
    "numpy": {"isa": "numpy"},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_no_setting_changes_a_token(model: Path, name: str) -> None:
    with running(model) as engine:
        wanted, _ = ask(engine, PROMPT, 16, SEEDED)
    with running(model, STREAMED, **SETTINGS[name]) as engine:
        assert ask(engine, PROMPT, 16, SEEDED)[0] == wanted


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_usage_counts_exactly_the_tokens_asked_for(model: Path, max_tokens: int) -> None:
    with running(model) as engine:
        ids, outcome = ask(engine, PROMPT, max_tokens)
    assert len(ids) == outcome.usage.completion_tokens == max_tokens
    assert outcome.usage.prompt_tokens == len(PROMPT)
    assert outcome.usage.passes == max_tokens


def test_a_reply_stops_at_the_context_and_no_earlier(model: Path) -> None:
    with running(model, context=64) as engine:
        ids, outcome = ask(engine, PROMPT, 2000)
    assert outcome.reason is FinishReason.CONTEXT
    assert len(ids) == 64 - len(PROMPT)


def test_streamed_bytes_of_a_prompt_are_those_of_one_pass(model: Path) -> None:
    with running(model) as engine:
        plan_bytes = engine.status().plan_bytes
        _, outcome = ask(engine, PROMPT, 1)
    usage = outcome.usage
    assert usage.streamed_bytes - usage.embedding_bytes == plan_bytes


class Faults:
    """Stands before an engine's forward and raises in its passes."""

    def __init__(self, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ANN401
        forward = engine._executor._forward
        self.n_left = 0
        self.is_lasting = False
        self._run = forward.run
        monkeypatch.setattr(forward, "run", self.run)

    def run(self, *arguments: Any) -> PassResult:  # noqa: ANN401
        if self.is_lasting or self.n_left:
            self.n_left -= 1
            raise ZeroDivisionError("in a block")
        result: PassResult = self._run(*arguments)
        return result


def test_a_fault_inside_a_pass_costs_that_pass_alone(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(model) as engine:
        wanted, _ = ask(engine, PROMPT, 8, SEEDED)
        faults = Faults(engine, monkeypatch)
        faults.n_left = 1
        _, outcome = ask(engine, PROMPT, 8, SEEDED)
        assert outcome.reason is FinishReason.ERROR
        assert isinstance(outcome.error, EngineFault)
        assert ask(engine, PROMPT, 8, SEEDED)[0] == wanted
        assert engine.status().is_alive


def test_faults_in_every_pass_end_the_engine_visibly(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(model) as engine:
        Faults(engine, monkeypatch).is_lasting = True
        for _ in range(MAX_FAILED_PASSES):
            assert isinstance(ask(engine, PROMPT, 8)[1].error, EngineFault)
        engine._thread.join(20)
        assert not engine.status().is_alive
        with pytest.raises(EngineFault):
            submit(engine, PROMPT, 1)


def test_a_pass_that_ends_early_without_a_fault_is_an_engine_fault(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(model) as engine:
        broken = pass_result(binding.PASS_FAULT)
        with monkeypatch.context() as patch:
            patch.setattr(engine._executor._forward, "run", lambda *_: broken)
            assert isinstance(ask(engine, PROMPT, 1)[1].error, EngineFault)
        assert ask(engine, PROMPT, 1)[1].error is None


def test_a_cancel_while_storage_is_retried_ends_the_request(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_module, "RETRY_PAUSES_S", (60.0,))
    with running(model) as engine:
        is_waiting: queue.Queue[None] = queue.Queue()
        wait = engine._executor._wait

        def tell(seconds: float, is_unwanted: Any) -> bool:  # noqa: ANN401
            is_waiting.put(None)
            return wait(seconds, is_unwanted)

        broken = pass_result(binding.PASS_FAULT)
        with monkeypatch.context() as patch:
            patch.setattr(engine._executor._forward, "run", lambda *_: broken)
            patch.setattr(engine._executor._stream, "fault", lambda: (StorageFault("/m", 0, "EIO"), 5))
            patch.setattr(engine._executor, "_wait", tell)
            request, listener = submit(engine, PROMPT, 1)
            is_waiting.get(timeout=20)
            engine.cancel(request)
            assert listener.wait().reason is FinishReason.CANCELLED
        assert ask(engine, PROMPT, 1)[1].error is None


def test_the_status_can_be_read_after_the_end(model: Path) -> None:
    with running(model) as engine:
        ask(engine, PROMPT, 2)
        before = engine.status()
    after = engine.status()
    assert not after.is_alive
    assert after.streamed_bytes_total == before.streamed_bytes_total > 0
    assert after.device_bytes_total >= before.device_bytes_total


def test_a_file_that_was_written_to_ends_requests_with_data_loss(tmp_path: Path) -> None:
    path = build_gguf(tmp_path / "m.gguf", quant=QuantType.Q8_0)
    with running(path) as engine:
        assert ask(engine, PROMPT, 2)[1].error is None
        data = bytearray(path.read_bytes())
        data[-4096:] = bytes(4096)
        with path.open("r+b") as file:
            file.write(data)
        error = ask(engine, PROMPT, 2)[1].error
        assert isinstance(error, DataLoss)
        assert str(path) in str(error)
        assert engine.status().is_alive


def test_a_resident_model_outlives_its_file(tmp_path: Path) -> None:
    path = build_gguf(tmp_path / "m.gguf", quant=QuantType.Q8_0)
    with running(path, pin=True) as engine:
        wanted, _ = ask(engine, PROMPT, 4)
        with path.open("r+b") as file:
            file.truncate(10_000)
        path.unlink()
        assert ask(engine, PROMPT, 4)[0] == wanted


def test_a_file_that_was_replaced_by_name_changes_nothing(tmp_path: Path) -> None:
    path = build_gguf(tmp_path / "m.gguf", quant=QuantType.Q8_0)
    with running(path) as engine:
        wanted, _ = ask(engine, PROMPT, 4)
        build_gguf(tmp_path / "other.gguf", quant=QuantType.Q8_0, seed=9).rename(path)
        assert ask(engine, PROMPT, 4)[0] == wanted


def test_a_budget_that_is_too_small_is_refused_before_anything_is_allocated(model: Path) -> None:
    with pytest.raises(BudgetError, match="cannot hold"), running(model, n_bytes=100_000):
        pass


def test_instructions_that_this_machine_lacks_are_refused(model: Path) -> None:
    isa = "neon" if "neon" not in binding.isa_names(binding.load_library()) else "avx2"
    with pytest.raises(ConfigError, match="isa"), running(model, isa=isa):
        pass


def test_no_thread_and_no_descriptor_is_left_behind(model: Path) -> None:
    def counts() -> tuple[int, int]:
        return len(list(Path("/proc/self/task").iterdir())), len(list(Path("/proc/self/fd").iterdir()))

    before = counts()
    for _ in range(3):
        with running(model, threads=2) as engine:
            ask(engine, PROMPT, 2)
            engine._executor.reset()
    deadline = time.monotonic() + 20.0
    while counts() != before and time.monotonic() < deadline:
        time.sleep(0.001)  # a thread that was joined leaves the kernel's list a moment later
    assert counts() == before


def test_a_refused_start_leaves_no_descriptor_behind(model: Path) -> None:
    checkpoint = open_checkpoint(model)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(BudgetError):
        build_engine(Config(model=model), checkpoint, Ledger(1000, 0, 0))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_fault_is_told_in_the_journal_once(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with running(model) as engine, caplog.at_level(logging.ERROR, "sipd.engine"):
        Faults(engine, monkeypatch).n_left = 1
        ask(engine, PROMPT, 1)
    assert [record.getMessage() for record in caplog.records if "ZeroDivisionError" in record.getMessage()] == [
        "the pass failed: ZeroDivisionError: in a block"
    ]
