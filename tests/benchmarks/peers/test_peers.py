from __future__ import annotations

from pathlib import Path

import pytest

from sipd.config import Config
from sipd.engine.planned_model import open_planned_model
from sipd.weights.tensor_table import QuantType
from tests.benchmarks.peers.cases import CASES, CASES_BY_NAME
from tests.benchmarks.peers.limited import run_limited
from tests.benchmarks.peers.measurement import Run
from tests.benchmarks.peers.ratio_table import Pair, reached_ratio, rows
from tests.benchmarks.peers.synthetic import Shape, write_model


def run(decode: float, first_token_s: float, **more: float) -> Run:
    return Run(
        {"decode_tokens_per_s": decode, "first_token_s": first_token_s, "prefill_tokens_per_s": {}} | more, "", 0
    )


@pytest.mark.parametrize("quant", [QuantType.Q4_0, QuantType.Q8_0, QuantType.Q4_K])
def test_a_synthetic_model_is_one_that_sipd_runs(tmp_path: Path, quant: QuantType) -> None:
    shape = Shape(n_layers=8, d_model=256, d_ff=256, n_heads=4, n_kv_heads=2, vocab_size=320)
    model = open_planned_model(Config(model=write_model(tmp_path / "m.gguf", quant, shape)))
    assert model.program.hyperparameters.n_layers == 8
    types = {tensor.quant_type for tensor in model.checkpoint.tensors.values()} - {QuantType.F32}
    assert types == ({QuantType.Q4_K, QuantType.Q6_K} if quant is QuantType.Q4_K else {quant})


def test_a_ratio_above_one_always_means_that_sipd_is_ahead() -> None:
    pairs = [Pair(run(8.0, 1.0), run(2.0, 3.0))]
    assert "| 4.00 | 1.3 |" in rows(CASES_BY_NAME["limited-0.5"], pairs)[0]
    assert "| 3.00 | 1.3 |" in rows(CASES_BY_NAME["first-token-0.5"], pairs)[0]


def test_a_missed_target_is_marked() -> None:
    assert "**below**" in rows(CASES_BY_NAME["limited-0.5"], [Pair(run(1.0, 1.0), run(1.0, 1.0))])[0]


def test_medians_are_taken_over_the_pairs() -> None:
    pairs = [Pair(run(rate, 1.0), run(1.0, 1.0)) for rate in (9.0, 2.0, 3.0)]
    assert rows(CASES_BY_NAME["limited-0.5"], pairs)[0].startswith("| limited-0.5 | decode | 3.00 | 1.00 | 3.00")


def test_a_peer_that_was_killed_leaves_no_ratio_and_says_so() -> None:
    lines = rows(CASES_BY_NAME["limited-0.5"], [Pair(run(8.0, 1.0), Run({}, "killed for memory", 0))])
    assert "| - | - |" in lines[0]
    assert "llama.cpp failed: killed for memory" in lines[1]


def test_the_reached_rate_is_held_against_the_lower_limit() -> None:
    sipd = run(4.5, 1.0, compute_s_per_token=0.1, streamed_bytes_per_token=100.0)
    assert reached_ratio(Pair(sipd, sipd), 500.0) == 0.9
    assert reached_ratio(Pair(sipd, sipd), 5000.0) == 0.45


def test_a_limit_is_a_fraction_of_the_file_or_bytes() -> None:
    assert CASES_BY_NAME["limited-0.5"].limit_bytes(1_000_000) == 499_712
    assert CASES_BY_NAME["smollm2-96m"].limit_bytes(1_000_000) == 96 * 1024**2
    assert len(CASES_BY_NAME) == len(CASES)


def test_a_command_without_a_limit_needs_no_group(tmp_path: Path) -> None:
    done = run_limited(
        ["sh", "-c", "echo out; exit 3"],
        limit_bytes=None,
        read_bytes_per_s=None,
        file=tmp_path,
        timeout_s=60,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout, done.oom_kills) == (3, "out\n", 0)
