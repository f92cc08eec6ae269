"""The machine as files: everything that a check reads goes through here, so that a test can put another tree there.

Only reads. A file that is missing or unreadable is None, never an error.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sipd.cgroup import MemoryCgroup, find_memory_cgroup, is_controller_missing

_TIMEX_BYTES = 512  # struct timex has 208 on 64-bit Linux; adjtimex with modes 0 only fills it


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Bytes of a file system, and whether it is mounted read-only."""

    total_bytes: int
    free_bytes: int  # for users other than root
    is_read_only: bool


@dataclass(frozen=True, slots=True)
class Mount:
    """The file system that holds a path."""

    point: str
    kind: str
    source: str


def disk_space(path: Path) -> DiskSpace | None:
    """Returns the space of the file system at `path`, or of its nearest folder that exists."""
    for folder in (path, *path.parents):
        try:
            found = os.statvfs(folder)
        except OSError:
            continue
        is_read_only = bool(found.f_flag & os.ST_RDONLY)
        return DiskSpace(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, is_read_only)
    return None


def clock_state() -> int | None:
    """Returns what adjtimex(2) returns for a mere look (5: not synchronised), or None where it is refused."""
    adjtimex = getattr(ctypes.CDLL(None), "adjtimex", None)
    state = -1 if adjtimex is None else int(adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)))
    return None if state < 0 else state


@dataclass(frozen=True)
class Machine:
    """Where to look. The defaults are this machine."""

    root: Path = Path("/")
    architecture: str = field(default_factory=lambda: os.uname().machine)
    page_bytes: int = field(default_factory=lambda: os.sysconf("SC_PAGESIZE"))
    now: Callable[[], float] = time.time
    disk_space: Callable[[Path], DiskSpace | None] = disk_space
    clock_state: Callable[[], int | None] = clock_state

    def path(self, name: str) -> Path:
        """Returns where `/…` lies below the root."""
        return self.root / name.lstrip("/")

    def text(self, name: str) -> str | None:
        """Returns a file's text without blanks at its ends."""
        try:
            return self.path(name).read_text(encoding="utf-8", errors="replace").strip("\0 \n\t")
        except OSError:
            return None

    def number(self, name: str) -> int | None:
        """Returns a file that holds one decimal number."""
        text = self.text(name)
        return int(text) if text is not None and text.lstrip("-").isdecimal() else None

    def matching(self, pattern: str) -> list[str]:
        """Returns the names that match a glob pattern, sorted."""
        return sorted(f"/{path.relative_to(self.root)}" for path in self.root.glob(pattern.lstrip("/")))

    def cgroup(self) -> MemoryCgroup | None:
        """Returns the memory cgroup of this process."""
        return find_memory_cgroup(self.path("/proc"), self.root)

    def is_controller_missing(self) -> bool:
        """Returns True when cgroups are mounted and none of them accounts memory."""
        return is_controller_missing(self.path("/proc"), self.root)

    def meminfo(self) -> dict[str, int]:
        """Returns /proc/meminfo in bytes."""
        lines = (line.split() for line in (self.text("/proc/meminfo") or "").splitlines())
        return {
            parts[0].rstrip(":"): int(parts[1]) * 1024 for parts in lines if len(parts) > 1 and parts[1].isdecimal()
        }

    def mount_of(self, path: Path) -> Mount | None:
        """Returns the mount with the longest mount point above `path`; the last one wins, as it hides the others."""
        found: Mount | None = None
        for line in (self.text("/proc/self/mountinfo") or "").splitlines():
            before, _, after = line.partition(" - ")
            fields, kinds = before.split(" "), after.split(" ")
            if len(fields) < 5 or len(kinds) < 2:
                continue
            point = fields[4].replace("\\040", " ")
            if path.is_relative_to(point) and (found is None or len(point) >= len(found.point)):
                found = Mount(point, kinds[0], kinds[1])
        return found
