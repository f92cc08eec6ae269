"""Storage that is late, short, interrupted, broken, shrinking or not direct: the same tokens, or a named fault."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sipd.engine.planned_model import needed_bytes, open_planned_model
from sipd.weights.gguf import read_gguf
from sipd.weights.tensor_table import QuantType
from tests.builders import build_gguf
from tests.hostile.shim import compiled_shim
from tests.hostile.storage_driver import DEFAULTS, Driver

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120.0  # of a whole script: a hang is a failure
SHAPES = [{}, {"ring_slots": 8, "readers": 4}, {"ring_slots": 3, "readers": 8}, {"ring_slots": 64, "readers": 1}]


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled_shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture(scope="module")
def sound_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tensors at odd multiples of 32, the last of them ending in the middle of a block, at the end of the file."""
    path = tmp_path_factory.mktemp("sound") / "m.gguf"
    for n in range(64):  # the header's length decides where the tensors begin
        build_gguf(path, quant=QuantType.Q8_0, vocab_size=331, metadata={"general.description": "x" * n})
        table = read_gguf(path)
        if any(tensor.file_offset % 64 == 32 for tensor in table.tensors.values()):
            break
    end = max(tensor.file_offset + tensor.n_bytes for tensor in table.tensors.values())
    os.truncate(path, end)
    assert end % 512
    return path


@pytest.fixture
def model(sound_model: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copy(sound_model, tmp_path / "m.gguf"))


@dataclass(frozen=True)
class Result:
    answers: list[Any]
    lines: list[str]

    @property
    def ids(self) -> list[list[int]]:
        assert all("error" not in answer for answer in self.answers), self.answers
        return [answer["ids"] for answer in self.answers if "ids" in answer]


Run = Callable[..., Result]


@pytest.fixture
def run(shim: Path, model: Path) -> Run:
    """Runs a script of steps; a process that ends by a signal or late fails its test."""

    def run_script(*steps: list[Any]) -> Result:
        command = [sys.executable, "-m", "tests.hostile.storage_driver", str(model), json.dumps(steps)]
        environment = os.environ | {"LD_PRELOAD": str(shim), "SHIM_PATH": str(model)}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        assert done.returncode == 0, done.stderr
        return Result(**json.loads(done.stdout))

    return run_script


@pytest.fixture(scope="module")
def wanted(sound_model: Path) -> list[list[int]]:
    """The tokens of three requests on sound storage."""
    driver = Driver(sound_model)
    for step in (["start", {}], ["ask_all", 3, 6], ["stop"]):
        driver.run(step)
    return Result(driver.answers, []).ids


def is_direct(run: Run) -> bool:
    return bool(run(["start", {}], ["status"], ["stop"]).answers[0]["is_direct"])


@pytest.mark.parametrize("direct_io", ["auto", "off"])
def test_reads_that_come_late_and_out_of_order_change_no_token(
    run: Run, wanted: list[list[int]], direct_io: str
) -> None:
    steps: list[list[Any]] = [["set", "delay_us", 300]]
    n_runs = 0
    for seed in range(4):
        for shape in SHAPES:
            steps += [["set", "seed", seed], ["start", shape | {"direct_io": direct_io}], ["ask_all", 3, 6], ["stop"]]
            n_runs += 1
    assert run(*steps).ids == wanted * n_runs


def test_late_reads_of_a_partly_pinned_model_change_no_token(run: Run, model: Path, wanted: list[list[int]]) -> None:
    least = needed_bytes(open_planned_model(replace(DEFAULTS, model=model, pin=True)).layout(0))
    steps: list[list[Any]] = [["set", "delay_us", 500]]
    for seed in range(8):
        start: list[Any] = ["start", {"pin": True, "readers": 4}, least + 20_000 * seed]
        steps += [["set", "seed", seed], start, ["ask_all", 3, 6], ["status"], ["stop"]]
    result = run(*steps)
    assert result.ids == wanted * 8
    pinned = [answer["pinned_bytes"] for answer in result.answers if "pinned_bytes" in answer]
    assert any(0 < n_bytes < max(pinned) for n_bytes in pinned), pinned


@pytest.mark.parametrize("direct_io", ["auto", "off"])
def test_short_reads_change_no_token(run: Run, wanted: list[list[int]], direct_io: str) -> None:
    result = run(["set", "short", 1], ["start", {"direct_io": direct_io}], ["ask_all", 3, 6], ["stop"])
    assert result.ids == wanted
    assert result.lines == []


def test_storms_of_interrupts_change_no_token(run: Run, wanted: list[list[int]]) -> None:
    result = run(["set", "eintr", 90], ["start", {"readers": 4}], ["ask_all", 3, 6], ["stop"])
    assert result.ids == wanted
    assert result.lines == []


def test_short_late_and_interrupted_reads_at_once_change_no_token(run: Run, wanted: list[list[int]]) -> None:
    faults: list[list[Any]] = [["set", "short", 1], ["set", "eintr", 40], ["set", "delay_us", 200]]
    assert run(*faults, ["start", {"readers": 4, "ring_slots": 5}], ["ask_all", 3, 6], ["stop"]).ids == wanted


def test_a_disk_that_is_gone_for_three_seconds_is_waited_for(run: Run, wanted: list[list[int]]) -> None:
    result = run(
        ["start", {}],
        ["set", "errno", errno.EIO],
        ["set_in", 3.0, "errno", 0],
        ["ask_all", 3, 6],
        ["ask_all", 3, 6],
        ["status"],
        ["stop"],
    )
    assert result.ids == wanted * 2
    assert result.answers[-1]["is_alive"]
    assert any("trying again" in line for line in result.lines)


def test_a_disk_that_stays_broken_is_a_storage_fault_and_the_engine_lives(
    run: Run, model: Path, wanted: list[list[int]]
) -> None:
    result = run(
        ["start", {}],
        ["set", "errno", errno.EIO],
        ["ask", 6],
        ["status"],
        ["set", "errno", 0],
        ["ask_all", 3, 6],
        ["stop"],
    )
    broken, status, *later = result.answers
    assert (broken["reason"], broken["error"], broken["status"]) == ("error", "StorageFault", "UNAVAILABLE")
    assert broken["path"] == str(model)
    assert 0 <= broken["offset"] < model.stat().st_size
    assert "read failed with EIO" in broken["message"]
    assert status["is_alive"]
    assert [answer["ids"] for answer in later] == wanted


def test_a_disk_that_breaks_in_the_middle_of_a_reply_fails_what_is_in_flight_only(
    run: Run, wanted: list[list[int]]
) -> None:
    result = run(
        ["start", {}],
        ["set", "errno", errno.ENODEV],
        ["set", "fail_after", 60],
        ["ask_all", 3, 6],
        ["set", "errno", 0],
        ["ask_all", 3, 6],
        ["stop"],
    )
    assert {answer["error"] for answer in result.answers[:3]} == {"StorageFault"}
    assert [answer["ids"] for answer in result.answers[3:]] == wanted


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_direct_reads_that_stop_working_are_replaced_with_one_line(
    run: Run, wanted: list[list[int]], number: int
) -> None:
    if not is_direct(run):
        pytest.skip("direct reads do not work here")
    result = run(
        ["start", {"readers": 4}],
        ["set", "fail_direct", number],
        ["set", "fail_after", 50],
        ["ask_all", 3, 6],
        ["ask_all", 3, 6],
        ["status"],
        ["stop"],
    )
    assert result.ids == wanted * 2
    assert not result.answers[-1]["is_direct"]
    assert len(result.lines) == 1
    assert "reading through the page cache from now on" in result.lines[0]


def test_a_file_system_that_refuses_o_direct_is_read_through_the_page_cache_with_one_line(
    run: Run, wanted: list[list[int]]
) -> None:
    result = run(["set", "refuse", 1], ["start", {}], ["ask_all", 3, 6], ["status"], ["stop"])
    assert result.ids == wanted
    assert not result.answers[-1]["is_direct"]
    assert len(result.lines) == 1
    assert "refuses O_DIRECT" in result.lines[0]


def test_a_file_system_that_refuses_o_direct_is_refused_where_direct_reads_are_insisted_on(
    run: Run, model: Path
) -> None:
    (answer,) = run(["set", "refuse", 1], ["start", {"direct_io": "on"}]).answers
    assert answer["error"] == "StorageFault"
    assert answer["path"] == str(model)
    assert "direct_io is on" in answer["message"]


@pytest.mark.parametrize("direct_io", ["auto", "off"])
def test_a_file_that_shrinks_in_the_middle_of_a_reply_is_data_loss_and_the_process_lives(
    run: Run, model: Path, direct_io: str
) -> None:
    size = model.stat().st_size
    result = run(
        ["start", {"direct_io": direct_io}],
        ["truncate_at", 3, 0.6],
        ["ask", 40],
        ["status"],
        ["ask", 1],
        ["status"],
        ["stop"],
    )
    lost, status, again, _ = result.answers
    for answer in (lost, again):
        assert (answer["reason"], answer["error"], answer["status"]) == ("error", "DataLoss", "DATA_LOSS")
        assert answer["path"] == str(model)
        assert int(size * 0.6) <= answer["offset"] < size
    assert len(lost["ids"]) >= 3
    assert status["is_alive"]


def test_a_file_that_shrinks_under_a_resident_model_changes_nothing(run: Run, wanted: list[list[int]]) -> None:
    result = run(["start", {"pin": True}], ["ask", 2], ["truncate_at", 3, 0.6], ["ask_all", 3, 6], ["stop"])
    assert result.ids[1:] == wanted


def test_a_file_that_is_replaced_by_name_is_still_read_as_it_was(
    run: Run, model: Path, wanted: list[list[int]]
) -> None:
    other = build_gguf(model.with_name("other"), quant=QuantType.Q8_0, vocab_size=331, seed=5)
    result = run(["start", {}], ["ask", 1], ["replace", str(other)], ["ask_all", 3, 6], ["stop"])
    assert result.ids[1:] == wanted


def test_a_file_that_is_replaced_while_the_disk_is_gone_is_data_loss(run: Run, model: Path) -> None:
    other = build_gguf(model.with_name("other"), quant=QuantType.Q8_0, vocab_size=331, seed=5)
    os.truncate(other, model.stat().st_size)
    result = run(
        ["start", {}],
        ["ask", 1],
        ["replace", str(other)],
        ["set", "errno", errno.EIO],
        ["set_in", 1.0, "errno", 0],
        ["ask", 6],
        ["status"],
        ["stop"],
    )
    _, lost, status = result.answers
    assert lost["error"] == "DataLoss"
    assert "written to or replaced" in lost["message"]
    assert status["is_alive"]


def test_a_start_on_a_broken_disk_names_the_file(run: Run, model: Path) -> None:
    (answer,) = run(["set", "errno", errno.EIO], ["set", "fail_after", 0], ["start", {}]).answers
    assert answer["error"] in {"StorageFault", "GgufError"}
    assert str(model) in answer["message"]


def test_odd_alignments_and_a_tail_in_the_middle_of_a_block_change_no_token(run: Run, wanted: list[list[int]]) -> None:
    steps: list[list[Any]] = []
    for tile_bytes in (1, 1000, 4096, 100_000):
        for direct_io in ("auto", "off"):
            steps += [["start", {"tile_bytes": tile_bytes, "direct_io": direct_io}], ["ask_all", 3, 6], ["stop"]]
    assert run(*steps).ids == wanted * 8
