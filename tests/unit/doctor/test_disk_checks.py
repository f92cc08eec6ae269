from __future__ import annotations

import os
from pathlib import Path

from sipd.doctor.disk_checks import block_device, check_disks
from sipd.doctor.finding import Finding, Level
from sipd.doctor.machine import DiskSpace, Machine, disk_space
from tests.unit.doctor.machines import GIB, PI, build

MIB = 1024**2


def look(machine: Machine, model: Path | None, snapshots: Path | None = None) -> dict[str, Finding]:
    return {each.check: each for each in check_disks(machine, model, snapshots, GIB)}


def model_on(root: Path, kind: str, **sys_files: str) -> tuple[Machine, Path]:
    """Returns a machine whose model lies on `kind`, on a partition of mmcblk0."""
    model = root / "m.gguf"
    root.mkdir(exist_ok=True)
    model.write_bytes(b"GGUF")
    number = model.stat().st_dev
    disk = "/sys/devices/platform/mmc/mmcblk0"
    files = PI | {
        "/proc/self/mountinfo": f"22 1 179:2 / / rw - ext4 /dev/root rw\n23 1 0:9 / {root} rw - {kind} x rw\n",
        f"{disk}/queue/logical_block_size": "512",
        f"{disk}/mmcblk0p2/partition": "2",
        **{f"{disk}/{name.replace('__', '/')}": text for name, text in sys_files.items()},
    }
    machine = build(root, files)
    link = machine.path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    link.parent.mkdir(parents=True)
    link.symlink_to(machine.path(f"{disk}/mmcblk0p2"))
    return machine, model


def test_file_system_disk_and_sector_of_the_model_are_told(tmp_path: Path) -> None:
    machine, model = model_on(tmp_path, "ext4")
    assert block_device(machine, model) == "/sys/devices/platform/mmc/mmcblk0"
    found = look(machine, model)["file system"]
    assert (found.level, found.text) == (Level.OK, "m.gguf on ext4, mmcblk0, sectors of 512 bytes")


def test_a_rotating_disk_is_named(tmp_path: Path) -> None:
    machine, model = model_on(tmp_path, "ext4", queue__rotational="1")
    assert look(machine, model)["file system"].text.endswith(", rotating")


def test_a_file_system_without_direct_reads_is_warned_about(tmp_path: Path) -> None:
    machine, model = model_on(tmp_path, "tmpfs")
    found = look(machine, model)["file system"]
    assert found.level is Level.WARN
    assert "tmpfs" in found.text


def test_a_full_and_a_read_only_var_are_warned_about(tmp_path: Path) -> None:
    full = DiskSpace(32 * GIB, 100 * MIB, is_read_only=False)
    assert look(build(tmp_path, PI, space=full), None)["space"].level is Level.WARN
    read_only = DiskSpace(32 * GIB, 20 * GIB, is_read_only=True)
    assert "read-only" in look(build(tmp_path, PI, space=read_only), None)["space"].text


def test_snapshots_want_a_folder_that_can_be_written_and_holds_them(tmp_path: Path) -> None:
    assert look(build(tmp_path, PI), None, tmp_path)["snapshots"].level is Level.OK
    for space, text in (
        (DiskSpace(32 * GIB, 20 * GIB, is_read_only=True), "read-only"),
        (DiskSpace(32 * GIB, GIB // 2, is_read_only=False), "512.0 MiB free, up to 1.0 GiB wanted"),
        (DiskSpace(100 * GIB, 2 * GIB, is_read_only=False), "2.0 GiB free"),
        (None, "cannot be looked at"),
    ):
        found = look(build(tmp_path, PI, space=space), None, tmp_path)["snapshots"]
        assert found.level is Level.WARN
        assert text in found.text


def test_the_space_of_a_folder_to_come_is_that_of_the_nearest_one_above(tmp_path: Path) -> None:
    found = disk_space(tmp_path / "a" / "b")
    assert found is not None
    assert (found.is_read_only, found.total_bytes) == (
        False,
        os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize,
    )
