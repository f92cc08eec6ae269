"""Runs a command in a memory cgroup of its own, with reads throttled where that is asked for. Needs root.

Invariant: the groups are removed however the command ends.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
# The shell enters the groups ("$1" of them) before it becomes the command
_ENTER = (
    'n=$1; shift; while [ "$n" -gt 0 ]; do echo $$ > "$1/cgroup.procs" || exit 125; shift; n=$((n-1)); done; exec "$@"'
)
_REMOVE_TRIES, _REMOVE_PAUSE_S = 100, 0.05


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended. `oom_kills` and `peak_bytes` are the memory group's; 0 without one."""

    returncode: int
    stdout: str
    stderr: str
    oom_kills: int
    peak_bytes: int


def run_limited(
    command: Sequence[str],
    *,
    limit_bytes: int | None,
    read_bytes_per_s: int | None,
    file: Path,
    timeout_s: float,
    cwd: Path,
) -> Finished:
    """Runs `command` and waits; `file` says which disk is throttled. Raises TimeoutExpired or OSError."""
    is_v2 = (_ROOT / "cgroup.controllers").exists()
    with _groups(is_v2, limit_bytes, read_bytes_per_s, file) as groups:
        entered = ["sh", "-c", _ENTER, "sh", str(len(groups)), *map(str, groups), *command]
        done = subprocess.run(entered, capture_output=True, text=True, check=False, timeout=timeout_s, cwd=cwd)
        if not limit_bytes:
            return Finished(done.returncode, done.stdout, done.stderr, 0, 0)
        peak = groups[0] / ("memory.peak" if is_v2 else "memory.max_usage_in_bytes")
        return Finished(done.returncode, done.stdout, done.stderr, _oom_kills(groups[0], is_v2), int(peak.read_text()))


@contextmanager
def _groups(is_v2: bool, limit_bytes: int | None, read_bytes_per_s: int | None, file: Path) -> Iterator[list[Path]]:
    """Makes the groups, the memory one first."""
    name = f"sipd-peers-{os.getpid()}"
    made: list[Path] = []
    try:
        if is_v2 and (limit_bytes or read_bytes_per_s):
            for controller in ("+memory", "+io"):
                with suppress(OSError):  # already on, or not to be had: the write to the limit says so
                    (_ROOT / "cgroup.subtree_control").write_text(controller)
        if limit_bytes:
            made.append(_make(_ROOT / name if is_v2 else _ROOT / "memory" / name))
            (made[0] / ("memory.max" if is_v2 else "memory.limit_in_bytes")).write_text(str(limit_bytes))
        if read_bytes_per_s:
            disk = _disk_of(file)
            if is_v2:
                if not made:
                    made.append(_make(_ROOT / name))
                (made[0] / "io.max").write_text(f"{disk} rbps={read_bytes_per_s}")
            else:
                made.append(_make(_ROOT / "blkio" / name))
                (made[-1] / "blkio.throttle.read_bps_device").write_text(f"{disk} {read_bytes_per_s}")
        yield made
    finally:
        for group in reversed(made):
            _remove(group)


def _make(group: Path) -> Path:
    group.mkdir()
    return group


def _remove(group: Path) -> None:
    """Removes a group; the kernel may need a moment after its last process."""
    for _ in range(_REMOVE_TRIES):
        try:
            group.rmdir()
        except OSError:
            time.sleep(_REMOVE_PAUSE_S)
        else:
            return


def _oom_kills(group: Path, is_v2: bool) -> int:
    text = (group / ("memory.events" if is_v2 else "memory.oom_control")).read_text()
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), 0)


def _disk_of(file: Path) -> str:
    """MAJ:MIN of the whole disk that holds `file`: partitions take no limit."""
    device = file.stat().st_dev
    node = (Path("/sys/dev/block") / f"{os.major(device)}:{os.minor(device)}").resolve()
    if (node / "partition").exists():
        node = node.parent
    return (node / "dev").read_text().strip()


def drop_page_cache() -> None:
    """Makes the next run a cold one."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")
