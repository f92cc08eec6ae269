from __future__ import annotations

from pathlib import Path

import pytest

import sipd
from sipd.cli import main
from sipd.errors import BudgetError


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
