"""Checks of the disks: the file system of the model and the folder of snapshots."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from sipd.doctor.finding import Finding, ok, warn
from sipd.doctor.machine import Machine
from sipd.size import format_size

_WITHOUT_DIRECT_IO = {"tmpfs", "ramfs", "squashfs", "erofs"}
_LITTLE = 0.05  # of a file system: below this, ext4 has little but its reserve left
_DATA = 256 * 1024**2  # the journal, logs and an upgrade of the package want that much


def check_disks(machine: Machine, model: Path | None, snapshots: Path | None, snapshot_bytes: int) -> Iterator[Finding]:
    """Yields the findings about where things lie; nothing is written and no weights are read."""
    yield from _check_root(machine)
    if model is not None and model.exists():
        yield _check_model_disk(machine, model.resolve())
    if snapshots is not None:
        yield _check_snapshots(machine, snapshots, snapshot_bytes)


def _check_root(machine: Machine) -> Iterator[Finding]:
    space = machine.disk_space(Path("/var"))
    if space is None:
        return
    text = f"{format_size(space.free_bytes)} of {format_size(space.total_bytes)} free below /var"
    if space.is_read_only:
        yield warn("space", "/var is mounted read-only", "remount it: the journal keeps no records there")
    elif space.free_bytes < min(_DATA, _LITTLE * space.total_bytes):
        yield warn("space", text, "journalctl --vacuum-size=100M, and remove what is not needed")
    else:
        yield ok("space", text)


def _check_model_disk(machine: Machine, model: Path) -> Finding:
    """What the model lies on; the device is that of this process's own view."""
    mount = machine.mount_of(model)
    kind = "unknown" if mount is None else mount.kind
    device = block_device(machine, model)
    text = f"{model.name} on {kind}"
    if device is not None:
        sector = machine.number(f"{device}/queue/logical_block_size")
        text += f", {device.rpartition('/')[2]}"
        text += "" if sector is None else f", sectors of {sector} bytes"
        if machine.number(f"{device}/queue/rotational") == 1:
            text += ", rotating"
    if kind in _WITHOUT_DIRECT_IO:
        advice = "keep the model on ext4, xfs, btrfs, f2fs or vfat: reads go through the page cache here"
        return warn("file system", f"{text}: no direct I/O", advice)
    return ok("file system", text)


def block_device(machine: Machine, path: Path) -> str | None:
    """Returns the /sys folder of the whole disk that holds `path`; None where there is none (tmpfs, a network)."""
    try:
        number = path.stat().st_dev
    except OSError:
        return None
    link = machine.path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not link.exists():
        return None
    node = link.resolve()
    if (node / "partition").exists():
        node = node.parent
    return f"/{node.relative_to(machine.root.resolve())}"


def _check_snapshots(machine: Machine, folder: Path, wanted_bytes: int) -> Finding:
    space = machine.disk_space(folder)
    if space is None:
        return warn("snapshots", f"{folder} cannot be looked at", "create it, or set snapshot_dir to another folder")
    if space.is_read_only:
        advice = "remount it, or set snapshot_dir to a folder that can be written: long prompts are computed anew"
        return warn("snapshots", f"{folder} is on a read-only file system", advice)
    if folder.exists() and not os.access(folder, os.W_OK):
        return warn("snapshots", f"{folder} cannot be written by this user", "the service's user must own it")
    text = f"{folder}: {format_size(space.free_bytes)} free, up to {format_size(wanted_bytes)} wanted"
    if space.free_bytes < wanted_bytes or space.free_bytes < _LITTLE * space.total_bytes:
        return warn("snapshots", text, "free space, or lower snapshot_bytes")
    return ok("snapshots", text)
