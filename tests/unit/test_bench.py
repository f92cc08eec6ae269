from __future__ import annotations

import csv
import ctypes
import json
import re
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from sipd import bench_sweep
from sipd.bench import run_bench
from sipd.bench_load import prompt_ids, stagger
from sipd.bench_report import bench_text
from sipd.bench_storage import measure_storage, probe_extents
from sipd.bench_sweep import COLUMNS, SweepLoad, point_command, run_sweep, sweep_budgets
from sipd.cli import main
from sipd.config import Config
from sipd.engine.planned_model import open_planned_model
from sipd.errors import BudgetError, ConfigError, SipdError
from sipd.kernels import binding
from sipd.memory import Ledger, open_ledger
from sipd.weights.plan import PLACE
from tests.builders import build_gguf

MIB = 1024**2
PASS_BYTES = 2 * 4 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64) + 4 * 320 * 64
ROW_BYTES = 4 * 64  # of the embedding


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sipd.bench_load._STILL_S", 0.02)  # the ring of a tiny model fills at once


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return build_gguf(tmp_path / "tiny.gguf")


def bench(config: Config, capsys: pytest.CaptureFixture[str], **load: int) -> dict[str, Any]:
    shape = {"prompt_tokens": 24, "tokens": 6, "clients": 1, "repetitions": 2, "probe_bytes": 1 << 16} | load
    assert run_bench(config, as_json=True, **shape) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def test_prefill_is_one_pass_and_holds_no_decode(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = bench(Config(model=model, budget=512 * MIB, pin=False), capsys)
    assert report["prefill"]["passes"] == 1
    assert report["prefill"]["rows_per_pass"] == 24
    assert report["prefill"]["streamed_bytes_per_pass"] == PASS_BYTES + 24 * ROW_BYTES
    assert report["prefill"]["embedding_bytes_per_pass"] == 24 * ROW_BYTES


def test_decode_counts_one_pass_a_token_without_the_prefill(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = bench(Config(model=model, budget=512 * MIB, pin=False), capsys)
    assert report["decode"]["passes"] == 5  # the first of the 6 tokens is prefill's
    assert report["decode"]["rows_per_pass"] == 1
    assert report["decode"]["streamed_bytes_per_pass"] == PASS_BYTES + ROW_BYTES
    assert report["decode"]["streamed_bytes_per_token"] == PASS_BYTES + ROW_BYTES


def test_rows_beyond_the_cap_take_another_pass(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = bench(Config(model=model, budget=512 * MIB, pin=False, rows_per_pass=10), capsys)
    assert report["prefill"]["passes"] == 3


def test_a_resident_model_streams_nothing_and_has_no_storage_limit(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = bench(Config(model=model, budget=512 * MIB), capsys)
    assert report["plan_bytes_per_pass"] == 0
    assert report["decode"]["streamed_bytes_per_pass"] == 0
    assert report["decode"]["kernel_to_plan_ratio"] is None
    assert report["limits"]["storage_tokens_per_s"] is None
    assert report["decode"]["binds"] == "compute"


def test_clients_share_the_passes_of_decode(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = bench(Config(model=model, budget=512 * MIB, pin=False), capsys, clients=3)
    assert report["clients"] == 3
    assert report["decode"]["rows_per_pass"] == 3
    assert report["decode"]["passes"] >= 5
    assert report["decode"]["streamed_bytes_per_token"] * 3 == pytest.approx(PASS_BYTES + 3 * ROW_BYTES, abs=3)


def test_the_peak_stays_under_the_budget_and_both_are_told(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = bench(Config(model=model, budget=512 * MIB), capsys)
    assert 0 < report["peak_anonymous_bytes"] < report["budget_bytes"] == 512 * MIB
    assert report["peak_anonymous_bytes"] < report["rss_peak_bytes"]


def test_every_key_is_documented(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = bench(Config(model=model, budget=512 * MIB), capsys)
    document = (Path(__file__).parents[2] / "docs" / "bench.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"`([a-z_]+)`", document))
    nested = [report["storage"], report["prefill"], report["decode"], report["limits"], report["storage"]["probes"][0]]
    found = set(report).union(*nested)
    assert found - documented == set()


def test_what_the_engine_probed_at_start_and_chose_is_told(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = bench(Config(model=model, budget=512 * MIB, pin=False, readers=3), capsys)
    assert report["readers"] == 3
    assert report["read_size"] > 0
    assert report["start_probe"] == []
    result = report | {"start_probe": [{"queue_depth": 2, "read_bytes": 1 << 20, "bytes_per_s": 5_000_000}]}
    assert "readers    3, reads of up to" in bench_text(result)
    assert "probed at start: 2 in flight 5 MB/s" in bench_text(result)
    assert "nothing to probe at start" in bench_text(report)


def test_the_text_tells_which_side_binds(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_bench(
        Config(model=model, budget=512 * MIB),
        prompt_tokens=8,
        tokens=2,
        clients=1,
        as_json=False,
        repetitions=1,
        probe_bytes=1 << 16,
    )
    out = capsys.readouterr().out
    assert "compute binds" in out
    assert "medians of 1" in out


@pytest.mark.parametrize(
    ("load", "setting"),
    [({"prompt_tokens": 600}, "prompt_tokens"), ({"tokens": 600}, "prompt_tokens"), ({"clients": 9}, "clients")],
)
def test_a_load_that_cannot_run_at_once_is_refused_by_name(model: Path, load: dict[str, int], setting: str) -> None:
    shape = {"prompt_tokens": 8, "tokens": 2, "clients": 1} | load
    with pytest.raises(ConfigError, match=f"^{setting}: "):
        run_bench(Config(model=model, budget=512 * MIB), as_json=True, repetitions=1, probe_bytes=1 << 16, **shape)


def test_a_budget_below_one_request_names_the_nearest_that_fits(model: Path) -> None:
    with pytest.raises(BudgetError, match=r"wanted --budget \d+M"):
        run_bench(Config(model=model, budget=MIB), prompt_tokens=8, tokens=2, clients=1, as_json=True)


def test_probes_draw_on_the_ledger_and_give_everything_back(model: Path) -> None:
    planned = open_planned_model(Config(model=model))
    ledger = Ledger(64 * MIB, 0, 0)
    rate = measure_storage(planned.library, planned.checkpoint, ledger, "auto", probe_bytes=1 << 16, probe_s=1.0)
    assert ledger.granted() == 0
    assert rate.n_skipped == 0
    assert len(rate.probes) == 12
    assert all(probe.n_bytes >= 1 << 16 for probe in rate.probes)


def test_a_visited_read_holds_the_files_own_bytes(model: Path) -> None:
    seen: list[bytes] = []
    planned = open_planned_model(Config(model=model))
    found = measure_storage(
        planned.library,
        planned.checkpoint,
        open_ledger(None),
        "off",
        probe_bytes=1 << 16,
        probe_s=1.0,
        visit=lambda address, n_bytes: seen.append(ctypes.string_at(address, n_bytes)),
    )
    assert found.visited_bytes_per_s
    assert seen
    assert seen[0] == model.read_bytes()[: len(seen[0])]


def test_probes_that_do_not_fit_are_left_out(tmp_path: Path) -> None:
    planned = open_planned_model(Config(model=build_gguf(tmp_path / "wide.gguf", d_model=256, d_ff=512)))
    ledger = Ledger(3 * MIB, 0, 0)
    rate = measure_storage(planned.library, planned.checkpoint, ledger, "off", probe_bytes=1 << 16, probe_s=1.0)
    assert 0 < rate.n_skipped < 12
    assert not rate.is_direct
    with pytest.raises(BudgetError, match="storage probe"):
        measure_storage(planned.library, planned.checkpoint, Ledger(PLACE, 0, 0), "auto")


def test_probe_reads_lie_inside_the_files_and_are_aligned() -> None:
    extents = probe_extents((10 * MIB + 5, 3000), 4 * MIB)
    assert [(extent.file_index, extent.offset, extent.length) for extent in extents] == [
        (0, 0, 4 * MIB),
        (0, 4 * MIB, 4 * MIB),
        (1, 0, 3000),
    ]


def test_prompts_are_the_same_in_every_run_and_differ_from_each_other() -> None:
    assert prompt_ids(1, 50, 320) == prompt_ids(1, 50, 320)
    assert prompt_ids(1, 50, 320) != prompt_ids(2, 50, 320)
    assert max(prompt_ids(1, 5000, 320)) == 319


def test_one_client_needs_no_stagger_and_several_need_their_prefill() -> None:
    assert stagger(64, 1000, 1) == 0
    assert stagger(64, 100, 4) == 7 + 4  # 400 rows in passes of 60, and one pass each to join


def test_a_sweep_goes_from_the_least_budget_to_everything(model: Path) -> None:
    planned = open_planned_model(Config(model=model, context=64))
    budgets = sweep_budgets(planned, SweepLoad(8, 4, 2), 5)
    assert budgets == sorted(set(budgets))
    assert all(budget % MIB == 0 for budget in budgets)


def test_a_point_spells_out_every_setting(model: Path) -> None:
    command = point_command(Config(model=model, threads=2, pin=False), 100 * MIB, SweepLoad(8, 4, 2))
    text = " ".join(command)
    for part in (f"--budget {100 * MIB}", "--threads 2", "--pin off", "--prompt-tokens 8", "--clients 2", "--json"):
        assert part in text
    assert command[1] == "-P", "a source tree in the working directory does not hide the installed package"


def test_bench_without_the_kernel_library_says_so(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> ctypes.CDLL:
        raise OSError("no such library")

    monkeypatch.setattr(binding, "load_library", missing)
    with pytest.raises(ConfigError, match="bench wants the kernel library"):
        run_bench(Config(model=model), prompt_tokens=4, tokens=1, clients=1, repetitions=1, as_json=True)


def test_a_sweep_writes_a_picture_and_a_table(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = bench(Config(model=model, budget=512 * MIB, pin=False), capsys)
    monkeypatch.setattr(bench_sweep, "measure_point", lambda _config, budget, _load: report | {"budget_bytes": budget})
    run = ["bench", str(model), "--sweep", str(tmp_path / "out<1>"), "--prompt-tokens", "24", "--tokens", "6"]
    assert main(run) == 0
    with (tmp_path / "out<1>.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert int(rows[0]["streamed_bytes_per_token"]) == PASS_BYTES + ROW_BYTES
    root = ET.parse(tmp_path / "out<1>.svg").getroot()
    words = " ".join(element.text or "" for element in root.iter())
    for word in ("decode", "storage limit", "compute limit", "streamed bytes per token"):
        assert word in words


def test_a_point_that_fails_ends_the_sweep_with_its_reason(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 78, "", "noise\nsipd: budget too small\n")
    monkeypatch.setattr(subprocess, "run", lambda *_args, **_options: failed)
    with pytest.raises(SipdError, match="sipd: budget too small"):
        bench_sweep.measure_point(Config(model=model), 64 * MIB, SweepLoad(8, 4, 1))


def test_a_sweep_into_a_missing_folder_is_refused_before_anything_runs(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sweep"):
        run_sweep(Config(model=model), tmp_path / "no" / "out", prompt_tokens=8, tokens=2, clients=1)
