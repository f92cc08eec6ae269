from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from sipd.doctor.finding import Finding, Level
from sipd.doctor.memory_checks import check_memory
from tests.unit.doctor.machines import CONTAINER, OLD_HOST, PI, build, without

MIB = 1024**2
UNIT = "/sys/fs/cgroup/system.slice/sipd.service"


def look(root: Path, files: Mapping[str, str], budget_bytes: int | None = None) -> dict[str, Finding]:
    return {each.check: each for each in check_memory(build(root, files), budget_bytes)}


def test_a_healthy_pi_shows_the_limit_of_the_unit_and_not_that_of_the_shell(tmp_path: Path) -> None:
    found = look(tmp_path, PI)
    assert {each.level for each in found.values()} == {Level.OK}
    assert found["limit"].text == "512.0 MiB for sipd.service"
    assert found["memory"].text == "906.2 MiB, 683.6 MiB available"


@pytest.mark.parametrize("file", ["/boot/firmware/cmdline.txt", "/boot/cmdline.txt"])
def test_without_the_controller_the_pi_is_told_which_line_to_change(tmp_path: Path, file: str) -> None:
    files = without(PI, "/sys/fs/cgroup") | {"/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io pids", file: "root=1"}
    found = look(tmp_path, files)["cgroup"]
    assert found.level is Level.FAIL
    assert found.advice == f"append 'cgroup_enable=memory cgroup_memory=1' to the one line of {file} and reboot"


def test_without_the_controller_another_machine_is_told_the_flags_and_the_reason(tmp_path: Path) -> None:
    files = without(PI, "/sys/fs/cgroup") | {
        "/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io pids",
        "/proc/cmdline": "quiet cgroup_disable=memory",
    }
    found = look(tmp_path, files)["cgroup"]
    assert found.advice.startswith("it was booted with cgroup_disable=memory; boot with 'cgroup_enable=memory")


def test_a_unit_without_a_limit_is_warned_about_unless_a_budget_is_set(tmp_path: Path) -> None:
    files = PI | {f"{UNIT}/memory.max": "max"}
    found = look(tmp_path, files)["limit"]
    assert (found.level, found.text) == (Level.WARN, "no MemoryMax= for sipd.service")
    assert "MemoryMax=512M" in found.advice
    assert look(tmp_path, files, 300 * MIB)["limit"].level is Level.OK


def test_a_throttling_limit_below_the_hard_one_is_warned_about(tmp_path: Path) -> None:
    found = look(tmp_path, PI | {f"{UNIT}/memory.high": str(400 * MIB)})["limit"]
    assert found.level is Level.WARN
    assert found.text == "MemoryHigh= of 400.0 MiB lies below MemoryMax= of 512.0 MiB for sipd.service"


def test_swap_is_warned_about_when_the_service_may_use_it(tmp_path: Path) -> None:
    swap = {"/proc/meminfo": PI["/proc/meminfo"].replace("SwapTotal: 0", "SwapTotal: 100000")}
    assert look(tmp_path, PI | swap)["swap"].level is Level.OK
    found = look(tmp_path, PI | swap | {f"{UNIT}/memory.swap.max": "max"})["swap"]
    assert found.level is Level.WARN
    assert "MemorySwapMax=0" in found.advice


def test_a_limit_larger_than_the_machine_is_warned_about(tmp_path: Path) -> None:
    found = look(tmp_path, PI | {f"{UNIT}/memory.max": str(2048 * MIB)})["memory"]
    assert found.level is Level.WARN
    assert "2.0 GiB is larger than the machine" in found.text


def test_in_a_container_its_own_limit_counts(tmp_path: Path) -> None:
    found = look(tmp_path, CONTAINER)
    assert found["limit"].text == "300.0 MiB for this container or machine"
    assert found["swap"].level is Level.WARN


def test_cgroup_v1_works_and_is_warned_about(tmp_path: Path) -> None:
    found = look(tmp_path, OLD_HOST)
    assert found["cgroup"].level is Level.WARN
    assert "systemd.unified_cgroup_hierarchy=1" in found["cgroup"].advice
    assert found["limit"].text == "400.0 MiB for this shell"


def test_a_machine_without_cgroups_is_told_to_set_a_budget(tmp_path: Path) -> None:
    found = look(tmp_path, {"/proc/meminfo": PI["/proc/meminfo"], "/proc/self/mountinfo": "", "/proc/self/cgroup": ""})
    assert found["cgroup"].level is Level.WARN
    assert "--budget" in found["cgroup"].advice
