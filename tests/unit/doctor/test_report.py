from __future__ import annotations

import json
from pathlib import Path

import pytest

from sipd.config import Config
from sipd.doctor import model_checks
from sipd.doctor.finding import Finding, Level
from sipd.doctor.machine import Machine
from sipd.doctor.report import examine, run_doctor
from sipd.errors import StorageFault
from sipd.weights.tensor_table import QuantType
from tests.builders import build_gguf
from tests.unit.doctor.machines import PI, build, without


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A sound model of a few hundred KB."""
    return build_gguf(tmp_path / "m.gguf", quant=QuantType.Q8_0)


def checks(config: Config) -> dict[str, Finding]:
    return {each.check: each for each in model_checks.check_model(config, 0.001)}


def test_a_sound_machine_without_a_model_ends_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_doctor(Config(), as_json=False, machine=build(tmp_path, PI)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "warn  model        none named" in lines
    assert lines[-1] == "nothing is broken, 1 warnings"


def test_something_broken_ends_with_1_and_its_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = without(PI, "/sys/fs/cgroup") | {"/sys/fs/cgroup/cgroup.controllers": "cpu"}
    assert run_doctor(Config(), as_json=False, machine=build(tmp_path, files)) == 1
    lines = capsys.readouterr().out.splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith("fail  cgroup "))
    assert lines[at + 1].strip().startswith("-> ")
    assert lines[-1].startswith("something is broken, ")


def test_json_has_the_worst_level_and_every_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_doctor(Config(), as_json=True, machine=build(tmp_path, PI)) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["level"] == "warn"
    assert {"check": "swap", "level": "ok", "text": "none", "advice": None} in report["findings"]


def test_a_model_that_is_not_there_is_broken(tmp_path: Path) -> None:
    *_, last = examine(Config(model=tmp_path / "none.gguf"), build(tmp_path, PI))
    assert (last.check, last.level) == ("model", Level.FAIL)
    assert "sipd pull" in last.advice


def test_this_machine_can_be_examined_whatever_it_is() -> None:
    found = list(examine(Config(), Machine()))
    assert all(each.advice for each in found if each.level is not Level.OK)
    assert {each.check for each in found} >= {"kernel", "huge pages", "clock", "memory", "model"}


def test_a_sound_model_is_told_what_fits_and_how_fast_it_will_be(model: Path) -> None:
    found = checks(Config(model=model, budget=400 << 20))
    assert found["fit"].level is Level.OK
    assert "in 400.0 MiB (budget)" in found["fit"].text
    assert "at most" in found["speed"].text
    assert "s computing" in found["speed"].text


def test_a_budget_that_is_too_small_is_broken_and_told_what_would_do(model: Path) -> None:
    found = checks(Config(model=model, budget=20 << 20))["fit"]
    assert found.level is Level.FAIL
    assert "wanted --budget" in found.advice


def test_what_is_no_model_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_text("This is not a model.\n" * 10)
    found = checks(Config(model=path))["model"]
    assert found.level is Level.FAIL
    assert "m.gguf" in found.text


def test_a_disk_that_fails_is_broken(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object, **_settings: object) -> None:
        raise StorageFault(str(model), 4096, "read failed with EIO")

    monkeypatch.setattr(model_checks, "measure_storage", fail)
    found = checks(Config(model=model, budget=400 << 20))["storage"]
    assert (found.level, found.text) == (Level.FAIL, f"{model}: at byte 4096: read failed with EIO")
