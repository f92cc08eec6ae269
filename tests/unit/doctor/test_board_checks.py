from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from sipd.doctor.board_checks import check_board
from sipd.doctor.clock_checks import check_clock
from sipd.doctor.finding import Finding, Level
from tests.unit.doctor.machines import CONTAINER, OLD_HOST, PI, PI_5, build, without

THROTTLED = "/sys/devices/platform/soc/soc:firmware/get_throttled"
POLICY = "/sys/devices/system/cpu/cpufreq/policy0"


def look(root: Path, files: Mapping[str, str]) -> dict[str, Finding]:
    return {each.check: each for each in check_board(build(root, files))}


def test_a_healthy_pi_4_is_ok_in_every_line(tmp_path: Path) -> None:
    found = look(tmp_path, PI)
    assert {each.level for each in found.values()} == {Level.OK}
    assert found["kernel"].text == ("Raspberry Pi 4 Model B Rev 1.4: Linux 6.6.51+rpt-rpi-v8, aarch64, pages of 4 KiB")
    assert found["frequency"].text == "ondemand at 600 of 1800 MHz"


def test_a_pi_5_with_large_pages_is_ok(tmp_path: Path) -> None:
    found = {each.check: each for each in check_board(build(tmp_path, PI_5, page_bytes=16384))}
    assert {each.level for each in found.values()} == {Level.OK}
    assert found["kernel"].text.endswith("pages of 16 KiB")
    assert found["power"].text == "no undervoltage"


@pytest.mark.parametrize(
    ("answer", "text", "advice"),
    [
        ("50005", "now: undervoltage, throttled", "power supply"),
        ("0x50000", "since boot: undervoltage, throttled", "power supply"),
        ("8", "now: soft temperature limit", "cool the board"),
        ("e0000", "since boot: frequency capped, throttled, soft temperature limit", "cool the board"),
    ],
)
def test_what_the_firmware_says_is_told_in_words(tmp_path: Path, answer: str, text: str, advice: str) -> None:
    found = look(tmp_path, PI | {THROTTLED: answer})["power"]
    assert (found.level, found.text) == (Level.WARN, text)
    assert advice in found.advice


def test_the_voltage_alarm_of_a_pi_5_is_told(tmp_path: Path) -> None:
    found = look(tmp_path, PI_5 | {"/sys/class/hwmon/hwmon1/in0_lcrit_alarm": "1"})["power"]
    assert (found.level, found.text) == (Level.WARN, "undervoltage")


def test_the_hottest_zone_counts(tmp_path: Path) -> None:
    found = look(tmp_path, PI | {"/sys/class/thermal/thermal_zone1/temp": "83500"})["heat"]
    assert (found.level, found.text) == (Level.WARN, "84 C")


def test_a_slow_governor_and_a_lowered_ceiling_are_told(tmp_path: Path) -> None:
    files = PI | {f"{POLICY}/scaling_governor": "powersave", f"{POLICY}/scaling_max_freq": "1200000"}
    found = look(tmp_path, files)["frequency"]
    assert found.level is Level.WARN
    assert found.text == "powersave at 600 of 1200 MHz"
    assert "1800 MHz" in found.advice
    assert "schedutil" in found.advice


def test_huge_pages_that_are_off_are_told_with_the_command(tmp_path: Path) -> None:
    name = "/sys/kernel/mm/transparent_hugepage/enabled"
    found = look(tmp_path, PI | {name: "always madvise [never]"})["huge pages"]
    assert (found.level, found.text) == (Level.WARN, "never")
    assert f"echo madvise > {name}" in found.advice


def test_a_kernel_without_huge_pages_cannot_be_told_to_switch_them_on(tmp_path: Path) -> None:
    found = look(tmp_path, without(PI, "/sys/kernel/mm"))["huge pages"]
    assert found.level is Level.WARN
    assert found.advice.startswith("nothing needed")


@pytest.mark.parametrize("files", [CONTAINER, OLD_HOST], ids=["container", "old host"])
def test_what_a_machine_does_not_tell_is_no_fault(tmp_path: Path, files: Mapping[str, str]) -> None:
    found = look(tmp_path, files)
    assert {found[name].level for name in ("kernel", "power", "heat", "frequency")} == {Level.OK}


def test_a_32_bit_system_is_warned_about(tmp_path: Path) -> None:
    first, *_ = check_board(build(tmp_path, PI, architecture="armv7l"))
    assert first.level is Level.WARN


def test_a_clock_from_before_the_first_release_is_told(tmp_path: Path) -> None:
    found = check_clock(build(tmp_path, PI, now=86400.0))
    assert found.level is Level.WARN
    assert found.text.startswith("1970-01-02")


@pytest.mark.parametrize(
    ("state", "level", "text"),
    [(5, Level.WARN, "not synchronised"), (0, Level.OK, "synchronised"), (None, Level.OK, "is not told")],
)
def test_whether_the_clock_is_synchronised_is_told(tmp_path: Path, state: int | None, level: Level, text: str) -> None:
    found = check_clock(build(tmp_path, CONTAINER, clock_state=state))
    assert found.level is level
    assert text in found.text
