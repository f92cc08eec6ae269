"""The unit files say what the daemon needs, and systemd's own audit finds them hardened."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from sipd.config import Config
from sipd.errors import BudgetError, ConfigError, ModelError, SipdError

SYSTEMD = Path(__file__).parents[2] / "systemd"
UNITS = ("sipd.service", "sipd@.service")
DROP_INS = sorted(path.name for path in (SYSTEMD / "drop-ins").glob("*.conf"))
HIGHEST_EXPOSURE = 2.0


def settings(path: Path) -> dict[str, list[str]]:
    """Returns name → values of every line that is no comment."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs systemd-analyze; without it a developer's machine skips, a CI machine fails."""
    command = shutil.which("systemd-analyze")
    if command is None:
        assert "CI" not in os.environ, "systemd-analyze is missing; on Debian: apt-get install systemd"
        pytest.skip("systemd-analyze is not installed")
    return subprocess.run([command, *arguments], capture_output=True, text=True, timeout=60, check=False)


def install(folder: Path, unit: str, drop_in: str | None = None) -> Path:
    """Puts a unit, and a drop-in of it, into `folder` with a program that is there; returns the unit's path."""
    text = (SYSTEMD / unit).read_text(encoding="utf-8").replace("/opt/sipd/bin/sipd", shutil.which("true") or "")
    path = folder / unit.replace("@", "@tiny")
    path.write_text(text, encoding="utf-8")
    if drop_in is not None:
        (folder / f"{path.name}.d").mkdir()
        shutil.copy(SYSTEMD / "drop-ins" / drop_in, folder / f"{path.name}.d")
    return path


@pytest.mark.parametrize("unit", UNITS)
def test_the_exposure_that_systemd_finds_is_at_most_two(unit: str) -> None:
    threshold = f"--threshold={HIGHEST_EXPOSURE * 10:.0f}"
    done = analyze("security", "--no-pager", "--offline=true", threshold, str(SYSTEMD / unit))
    assert done.returncode == 0, done.stdout + done.stderr
    exposure = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert exposure is not None, done.stdout
    assert float(exposure[1]) <= HIGHEST_EXPOSURE


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("drop_in", [None, *DROP_INS])
def test_systemd_finds_nothing_wrong_with_a_unit_and_each_drop_in(
    unit: str, drop_in: str | None, tmp_path: Path
) -> None:
    done = analyze("verify", "--man=no", "--recursive-errors=no", str(install(tmp_path, unit, drop_in)))
    ours = [line for line in done.stderr.splitlines() if str(tmp_path) in line or "sipd" in line]
    assert ours == [], done.stderr


def test_a_misspelt_setting_would_be_found(tmp_path: Path) -> None:
    unit = install(tmp_path, "sipd.service")
    unit.write_text(unit.read_text(encoding="utf-8").replace("OOMPolicy=", "OOMPolice="), encoding="utf-8")
    assert "OOMPolice" in analyze("verify", "--man=no", "--recursive-errors=no", str(unit)).stderr


@pytest.mark.parametrize("unit", UNITS)
def test_memory_has_a_hard_limit_no_swap_and_no_soft_limit(unit: str) -> None:
    found = settings(SYSTEMD / unit)
    assert (found["MemoryMax"], found["MemorySwapMax"], found["OOMPolicy"]) == (["512M"], ["0"], ["stop"])
    assert "MemoryHigh" not in found


@pytest.mark.parametrize("unit", UNITS)
def test_a_stop_has_more_time_than_the_daemons_grace(unit: str) -> None:
    assert float(settings(SYSTEMD / unit)["TimeoutStopSec"][0]) > Config().grace_s


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("error", [ConfigError, BudgetError, ModelError])
def test_what_a_restart_cannot_mend_is_not_restarted(unit: str, error: type[SipdError]) -> None:
    assert str(error.exit_code) in settings(SYSTEMD / unit)["RestartPreventExitStatus"][0].split()


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_daemon_that_was_told_to_stop_twice_has_not_failed(unit: str, number: signal.Signals) -> None:
    assert str(128 + number) in settings(SYSTEMD / unit)["SuccessExitStatus"][0].split()


@pytest.mark.parametrize("unit", UNITS)
def test_a_fault_of_the_daemon_is_restarted(unit: str) -> None:
    found = settings(SYSTEMD / unit)
    assert found["Restart"] == ["on-failure"]
    assert str(SipdError.exit_code) not in found["RestartPreventExitStatus"][0].split()


@pytest.mark.parametrize("unit", UNITS)
def test_the_daemon_alone_notifies_and_the_watchdog_is_on(unit: str) -> None:
    found = settings(SYSTEMD / unit)
    assert (found["Type"], found["NotifyAccess"]) == (["notify"], ["main"])
    assert float(found["WatchdogSec"][0]) > 0


@pytest.mark.parametrize("unit", UNITS)
def test_meminfo_stays_readable_for_boards_without_the_memory_controller(unit: str) -> None:
    assert "ProcSubset" not in settings(SYSTEMD / unit)


def test_the_group_that_may_use_the_socket_is_made_by_sysusers() -> None:
    group = settings(SYSTEMD / "sipd.service")["Group"][0]
    assert f"\ng {group} -\n" in (SYSTEMD / "sipd.sysusers").read_text(encoding="utf-8")


def test_the_user_is_named_unlike_the_group() -> None:
    found = settings(SYSTEMD / "sipd.service")
    # systemd.exec(5): a dynamic user must not have the name of a group that is there already.
    assert found["User"] != found["Group"]


def test_the_two_units_differ_only_where_a_model_needs_its_own() -> None:
    one, many = (settings(SYSTEMD / unit) for unit in UNITS)
    assert {name for name in one.keys() | many.keys() if one.get(name) != many.get(name)} == {
        "Description",
        "ExecStart",
        "RuntimeDirectory",
        "CacheDirectory",
    }


def test_the_runtime_directory_of_one_model_is_not_inside_another_units() -> None:
    # Below /run/sipd it would vanish with sipd.service.
    assert settings(SYSTEMD / "sipd@.service")["RuntimeDirectory"] == ["sipd-%i"]
