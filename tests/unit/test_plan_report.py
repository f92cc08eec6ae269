from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sipd.config import Config
from sipd.errors import BudgetError, GgufError
from sipd.plan_report import STORAGE_RATES_MB_S, run_plan
from sipd.weights.tensor_table import QuantType
from tests.builders import build_gguf

MIB = 1024**2
# q and output 64x64, k and v 32x64, gate, up and down 96x64, F32, two blocks; the head 320x64
BLOCK_BYTES = 2 * 4 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64)
HEAD_BYTES = 4 * 320 * 64


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return build_gguf(tmp_path / "tiny.gguf", with_vocab="gpt2")


def plan(config: Config, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert run_plan(config, as_json=True) == 0
    report: dict[str, object] = json.loads(capsys.readouterr().out)
    return report


def per_pass(report: dict[str, object]) -> dict[str, int]:
    found = report["bytes_per_pass"]
    assert isinstance(found, dict)
    return found


def test_the_bytes_per_pass_are_those_of_the_matrices(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = plan(Config(model=model, budget=512 * MIB, pin=False), capsys)
    assert per_pass(report) == {
        "blocks": BLOCK_BYTES,
        "head": HEAD_BYTES,
        "embedding_row": 4 * 64,
        "total": BLOCK_BYTES + HEAD_BYTES,
        "pinned": 0,
        "streamed": BLOCK_BYTES + HEAD_BYTES,
    }


def test_a_model_that_fits_streams_nothing(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = plan(Config(model=model, budget=512 * MIB), capsys)
    assert per_pass(report)["streamed"] == 0
    assert per_pass(report)["embedding_row"] == 0
    assert report["seconds_per_pass"] == [{"mb_per_s": rate, "seconds": 0.0} for rate in STORAGE_RATES_MB_S]


def test_a_tied_head_is_counted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = build_gguf(tmp_path / "tied.gguf", tied=True, quant=QuantType.Q8_0)
    report = plan(Config(model=path, budget=512 * MIB, pin=False), capsys)
    assert per_pass(report)["head"] == 320 * 2 * 34
    assert per_pass(report)["total"] == (BLOCK_BYTES // 4 + 320 * 64) // 32 * 34


def test_terms_and_free_bytes_add_up_to_the_budget(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = plan(Config(model=model, budget=512 * MIB), capsys)
    terms, free = report["terms"], report["free_bytes"]
    assert isinstance(terms, list)
    assert isinstance(free, int)
    assert sum(term["bytes"] for term in terms) + free == 512 * MIB
    assert free >= 0
    names = {"process base", "margin", "prompt text", "ring", "activations", "KV cache", "pinned weights"}
    assert names <= {term["name"] for term in terms}


def test_seconds_are_streamed_bytes_over_the_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = build_gguf(tmp_path / "wide.gguf", d_model=256, d_ff=512)
    report = plan(Config(model=path, budget=512 * MIB, pin=False), capsys)
    streamed = per_pass(report)["streamed"]
    assert report["seconds_per_pass"] == [
        {"mb_per_s": rate, "seconds": round(streamed / rate / 1e6, 4)} for rate in (45, 90, 400, 2000)
    ]


def test_kv_bytes_per_token_are_two_halves_of_each_block(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = plan(Config(model=model, budget=512 * MIB, context=64), capsys)
    assert report["kv_bytes_per_token"] == 2 * 2 * 2 * 32  # blocks, keys and values, binary16, width
    assert report["context_tokens"] == 64


def test_a_budget_that_is_too_small_prints_the_table_and_names_what_would_fit(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BudgetError, match="largest term is process base") as caught:
        run_plan(Config(model=model, budget=4 * MIB), as_json=False)
    out = capsys.readouterr().out
    assert "missing" in out
    assert "process base" in out
    wanted = re.search(r"--budget (\d+)M", str(caught.value))
    assert wanted is not None
    assert run_plan(Config(model=model, budget=(int(wanted[1]) + 2) * MIB), as_json=False) == 0


def test_a_context_that_is_too_large_comes_with_one_that_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = build_gguf(tmp_path / "long.gguf", context_length=1 << 23)
    with pytest.raises(BudgetError, match="largest term is KV cache") as caught:
        run_plan(Config(model=path, budget=2048 * MIB, context=1 << 23), as_json=True)
    assert json.loads(capsys.readouterr().out)["fits"] is False
    smaller = re.search(r"--context (\d+)", str(caught.value))
    assert smaller is not None
    assert run_plan(Config(model=path, budget=2048 * MIB, context=int(smaller[1]) * 7 // 8), as_json=False) == 0


def test_the_text_shows_every_figure_of_a_pass(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_plan(Config(model=model, budget=512 * MIB), as_json=False)
    out = capsys.readouterr().out
    for word in (
        "blocks",
        "head",
        "embedding row",
        "pinned",
        "streamed",
        "tiles",
        "ring",
        "rows per pass",
        "2000 MB/s",
    ):
        assert word in out


def test_a_file_that_is_no_model_is_refused_with_its_own_error(tmp_path: Path) -> None:
    path = tmp_path / "text.gguf"
    path.write_text("hello, I am no model at all")
    with pytest.raises(GgufError, match=re.escape(str(path))):
        run_plan(Config(model=path), as_json=False)
