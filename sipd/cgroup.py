"""The memory cgroup of this process, v2 or v1: its limit, what it uses now and at most, and what happened in it.

Only reads: nothing here changes a cgroup. A file that is missing or unreadable means "not known", never zero.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_V1_UNLIMITED = 2**62  # v1 writes LONG_MAX rounded down to a page for "no limit"; the page size varies
_FIELDS_BEFORE_DASH = 6  # mountinfo: id, parent, device, root, mount point, options; then tags, "-", type

CONTROLLER_ADVICE = (
    "the kernel's memory controller is off, so MemoryMax= in a unit is ignored; on Raspberry Pi OS append "
    "'cgroup_enable=memory cgroup_memory=1' to the one line of /boot/firmware/cmdline.txt and reboot"
)


@dataclass(frozen=True, slots=True)
class PageBytes:
    """What a cgroup is charged for; file pages are the kernel's to take back."""

    anonymous: int
    file: int


@dataclass(frozen=True, slots=True)
class MemoryEvents:
    """How often each thing happened in a cgroup since it was made; None where the kernel does not tell.

    v2 counts the groups below as well; v1 counts a killed process in its own group only.
    """

    high: int | None = None  # charges above the throttling limit
    max: int | None = None  # charges that met the hard limit
    oom: int | None = None  # the limit was met and nothing could be taken back
    oom_kill: int | None = None  # processes killed


@dataclass(frozen=True, slots=True)
class MemoryCgroup:
    """Where this process's memory is accounted. `path` lies at or below `mount`."""

    version: int
    path: Path
    mount: Path

    def limit_bytes(self) -> int | None:
        """Returns the lowest limit from here up to the root, or None when no level sets one.

        v2's memory.high counts as a limit: above it the kernel slows a process without swap down to a crawl. v1 tells
        the limit of levels that a container cannot see, and knows whether levels above count at all: memory.stat.
        """
        if self.version == 1:
            effective = self._stat().get("hierarchical_memory_limit")
            if effective is not None:
                return effective if effective < _V1_UNLIMITED else None
        limits = [
            limit
            for level in self.levels()
            for name in self._limit_names()
            if (limit := _read_number(level / name)) is not None
        ]
        return min((limit for limit in limits if limit < _V1_UNLIMITED), default=None)

    def hard_limit_bytes(self) -> int | None:
        """Returns `limit_bytes` without memory.high: what the kernel kills for."""
        if self.version == 1:
            return self.limit_bytes()
        return min(
            (limit for level in self.levels() if (limit := _read_number(level / "memory.max")) is not None),
            default=None,
        )

    def swap_limit_bytes(self) -> int | None:
        """Returns how much may be swapped out, or None when nothing limits it (v1: memory and swap together)."""
        name = "memory.swap.max" if self.version == 2 else "memory.memsw.limit_in_bytes"
        limits = [limit for level in self.levels() if (limit := _read_number(level / name)) is not None]
        return min((limit for limit in limits if limit < _V1_UNLIMITED), default=None)

    def events(self, level: Path | None = None) -> MemoryEvents:
        """Returns what happened in this cgroup, or in one of its `levels`."""
        level = level or self.path
        if self.version == 1:
            found = _read_pairs(level / "memory.oom_control")
            return MemoryEvents(max=_read_number(level / "memory.failcnt"), oom_kill=found.get("oom_kill"))
        found = _read_pairs(level / "memory.events")
        return MemoryEvents(found.get("high"), found.get("max"), found.get("oom"), found.get("oom_kill"))

    def current_bytes(self) -> int | None:
        """Returns what the kernel charges now, page cache included."""
        return _read_number(self.path / ("memory.current" if self.version == 2 else "memory.usage_in_bytes"))

    def peak_bytes(self) -> int | None:
        """Returns the highest charge so far (v2 tells it since Linux 5.19)."""
        return _read_number(self.path / ("memory.peak" if self.version == 2 else "memory.max_usage_in_bytes"))

    def page_bytes(self) -> PageBytes:
        """Returns the charge split into anonymous and file pages (memory.stat; zeros when it cannot be read)."""
        stat = self._stat()
        anonymous, file = ("anon", "file") if self.version == 2 else ("total_rss", "total_cache")
        return PageBytes(stat.get(anonymous, 0), stat.get(file, 0))

    def levels(self) -> list[Path]:
        """Returns the directories from this cgroup up to the mount point, the own one first."""
        levels = [self.path]
        while levels[-1] != self.mount:
            levels.append(levels[-1].parent)
        return levels

    def _limit_names(self) -> tuple[str, ...]:
        return ("memory.max", "memory.high") if self.version == 2 else ("memory.limit_in_bytes",)

    def _stat(self) -> dict[str, int]:
        return _read_pairs(self.path / "memory.stat")


def find_memory_cgroup(proc: Path = Path("/proc"), root: Path = Path("/")) -> MemoryCgroup | None:
    """Returns the cgroup that limits this process's memory, or None where the controller is off.

    Hybrid systems mount both trees: the v1 memory tree, when mounted, is the one that counts there. Mount points are
    looked up below `root`.
    """
    paths = _own_paths(proc / "self/cgroup")
    mounts = _cgroup_mounts(proc / "self/mountinfo")
    for version, controller in ((1, "memory"), (2, "")):
        if controller in paths and version in mounts:
            inner_root, mount_point = mounts[version]
            mount = root / mount_point.relative_to("/")
            path = _below(mount, inner_root, paths[controller])
            if version == 1 or _has_v2_memory(path, mount):
                return MemoryCgroup(version, path, mount)
    return None


def is_controller_missing(proc: Path = Path("/proc"), root: Path = Path("/")) -> bool:
    """Returns True when cgroups are there but none of them accounts memory (CONTROLLER_ADVICE says what helps)."""
    return bool(_cgroup_mounts(proc / "self/mountinfo")) and find_memory_cgroup(proc, root) is None


def _has_v2_memory(path: Path, mount: Path) -> bool:
    """Returns True when the v2 tree accounts memory at `path` or above; the real root has no memory.max file."""
    while True:
        if (path / "memory.max").exists() or "memory" in _read_text(path / "cgroup.controllers").split():
            return True
        if path == mount:
            return False
        path = path.parent


def _own_paths(path: Path) -> dict[str, str]:
    """Returns controller → cgroup path from /proc/self/cgroup; the v2 entry has the controller ''."""
    paths: dict[str, str] = {}
    for line in _read_text(path).splitlines():
        _, _, rest = line.partition(":")
        controllers, colon, cgroup = rest.partition(":")
        if colon:
            paths |= dict.fromkeys(controllers.split(","), cgroup)
    return paths


def _cgroup_mounts(path: Path) -> dict[int, tuple[str, Path]]:
    """Returns version → (root inside the file system, mount point) of the trees that can account memory."""
    mounts: dict[int, tuple[str, Path]] = {}
    for line in _read_text(path).splitlines():
        fields = line.split(" ")
        if "-" not in fields[_FIELDS_BEFORE_DASH:]:
            continue
        dash = fields.index("-", _FIELDS_BEFORE_DASH)
        kind, options = fields[dash + 1], fields[-1].split(",")
        if kind == "cgroup2":
            mounts.setdefault(2, (_unescaped(fields[3]), Path(_unescaped(fields[4]))))
        elif kind == "cgroup" and "memory" in options:
            mounts.setdefault(1, (_unescaped(fields[3]), Path(_unescaped(fields[4]))))
    return mounts


def _unescaped(field: str) -> str:
    """Returns a field of mountinfo with the kernel's octal escapes of blanks and backslashes resolved."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _below(mount: Path, root: str, cgroup: str) -> Path:
    """Returns the directory of `cgroup` under `mount`; containers may show a path that lies outside the mount."""
    inside = cgroup.removeprefix(root.rstrip("/")) if cgroup.startswith(root) else cgroup
    path = mount / inside.strip("/")
    return path if ".." not in path.parts and path.is_dir() else mount


def _read_number(path: Path) -> int | None:
    text = _read_text(path).strip()
    return int(text) if text.isdecimal() else None


def _read_pairs(path: Path) -> dict[str, int]:
    """Returns the "name number" lines of a file."""
    pairs = (line.split() for line in _read_text(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
