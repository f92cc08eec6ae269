from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sipd
from sipd.cli import main
from sipd.errors import BudgetError
from tests.builders import build_gguf


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    empty = tmp_path / "empty.toml"
    empty.write_text("")
    monkeypatch.setenv("SIPD_CONFIG", str(empty))


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.splitlines()[-1]


def test_version_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out == f"sipd {sipd.__version__}\n"


def test_an_unknown_flag_ends_with_the_usage_code_and_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["serve", "--modle", "x"])
    assert caught.value.code == 64
    assert last_line(capsys) == "sipd: unrecognized arguments: --modle x"


def test_flags_cannot_be_abbreviated() -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--mod", "x"])


def test_serve_without_a_model_is_a_configuration_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve"]) == 78
    assert last_line(capsys).startswith("sipd: model: not set, wanted --model PATH")


@pytest.mark.parametrize(
    ("flag", "value"), [("--budget", "12X"), ("--listen", "unix:/a/" + "x" * 120), ("--threads", "0")]
)
def test_a_bad_setting_is_a_configuration_error_on_the_last_line(
    capsys: pytest.CaptureFixture[str], flag: str, value: str
) -> None:
    assert main(["serve", "--model", "m.gguf", flag, value]) == 78
    assert last_line(capsys).startswith(f"sipd: {flag[2:]}: from flag: ")


def test_any_fault_of_ours_ends_with_its_code_and_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_arguments: object) -> int:
        raise BudgetError("budget cannot hold\none request")

    monkeypatch.setattr("sipd.cli._version", fail)
    assert main(["version"]) == 78
    assert last_line(capsys) == "sipd: budget cannot hold one request"


def test_an_internal_fault_is_told_apart_from_a_configuration_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_arguments: object) -> int:
        raise RuntimeError("odd")

    monkeypatch.setattr("sipd.cli._version", fail)
    assert main(["version"]) == 70
    assert last_line(capsys) == "sipd: internal fault: RuntimeError: odd"


def sipd_command(*arguments: str, stdout: str = os.devnull) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    with Path(stdout).open("w") as out:
        return subprocess.run(
            [sys.executable, "-m", "sipd", *arguments],
            stdout=out,
            stderr=subprocess.PIPE,
            check=False,
            env=environment,
            encoding="utf-8",
        )


@pytest.mark.parametrize("command", ["inspect", "version"])
def test_output_that_cannot_be_written_is_one_line_and_no_fault_of_ours(tmp_path: Path, command: str) -> None:
    model = [str(build_gguf(tmp_path / "m.gguf"))] if command == "inspect" else []
    done = sipd_command(command, *model, stdout="/dev/full")
    assert (done.returncode, done.stderr) == (74, "sipd: cannot write the output: No space left on device\n")


def test_a_model_whose_name_is_no_utf_8_can_be_looked_at(tmp_path: Path) -> None:
    done = sipd_command("inspect", str(build_gguf(tmp_path / "m\udcff.gguf")))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_context_that_holds_no_reply_is_refused_by_plan_as_by_serve(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "m.gguf", "--context", "1"]) == 78
    assert last_line(capsys) == "sipd: context: from flag: found '1', wanted a whole number of at least 2"


def test_the_reason_stays_one_line_whatever_a_name_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "/absent\x1b[31m\nname"]) == 78
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert r"/absent\x1b[31m name" in err


def test_every_setting_has_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    text = capsys.readouterr().out
    for flag in (
        "--model",
        "--listen",
        "--budget",
        "--context",
        "--threads",
        "--max-requests",
        "--config",
        "--grace-s",
    ):
        assert flag in text


def test_help_tells_what_a_flag_wants(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for wanted in ("--prefix-cache [on|off]", "--speculation [on|off]", "--snapshot-dir PATH", "--snapshot-bytes SIZE"):
        assert f"[{wanted}]" in text


def test_pull_goes_to_the_folder_that_was_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sipd.pull.pull_indexed", lambda model, folder: folder / model.file_name)
    assert main(["pull", "--to", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/SmolLM2-135M-Instruct.Q4_1.gguf\n"
