"""The memory cgroup of this process, v2 or v1: its limit, what it uses now and at most.

Only reads: nothing here changes a cgroup. A file that is missing or unreadable means "not known", never zero.
"""

from __future__ import annotations

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
class MemoryCgroup:
    """Where this process's memory is accounted. `path` lies at or below `mount`."""

    version: int
    path: Path
    mount: Path

    def limit_bytes(self) -> int | None:
        """Returns the lowest limit from here up to the mount point, or None when no level sets one."""
        name = "memory.max" if self.version == 2 else "memory.limit_in_bytes"
        limits = [limit for level in self._levels() if (limit := _read_number(level / name)) is not None]
        return min((limit for limit in limits if limit < _V1_UNLIMITED), default=None)

    def current_bytes(self) -> int | None:
        """Returns what the kernel charges now, page cache included."""
        return _read_number(self.path / ("memory.current" if self.version == 2 else "memory.usage_in_bytes"))

    def peak_bytes(self) -> int | None:
        """Returns the highest charge so far (v2 tells it since Linux 5.19)."""
        return _read_number(self.path / ("memory.peak" if self.version == 2 else "memory.max_usage_in_bytes"))

    def page_bytes(self) -> PageBytes:
        """Returns the charge split into anonymous and file pages (memory.stat; zeros when it cannot be read)."""
        stat = dict(line.split() for line in _read_text(self.path / "memory.stat").splitlines())
        anonymous, file = ("anon", "file") if self.version == 2 else ("total_rss", "total_cache")
        return PageBytes(int(stat.get(anonymous, 0)), int(stat.get(file, 0)))

    def _levels(self) -> list[Path]:
        levels = [self.path]
        while levels[-1] != self.mount:
            levels.append(levels[-1].parent)
        return levels


def find_memory_cgroup(proc: Path = Path("/proc")) -> MemoryCgroup | None:
    """Returns the cgroup that limits this process's memory, or None where the controller is off.

    Hybrid systems mount both trees: the v1 memory tree, when mounted, is the one that counts there.
    """
    paths = _own_paths(proc / "self/cgroup")
    mounts = _cgroup_mounts(proc / "self/mountinfo")
    for version, controller in ((1, "memory"), (2, "")):
        if controller in paths and version in mounts:
            root, mount = mounts[version]
            path = _below(mount, root, paths[controller])
            if version == 1 or _has_v2_memory(path, mount):
                return MemoryCgroup(version, path, mount)
    return None


def is_controller_missing(proc: Path = Path("/proc")) -> bool:
    """Returns True when cgroups are there but none of them accounts memory (CONTROLLER_ADVICE says what helps)."""
    return bool(_cgroup_mounts(proc / "self/mountinfo")) and find_memory_cgroup(proc) is None


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
        _, controllers, cgroup = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = cgroup
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
            mounts.setdefault(2, (fields[3], Path(fields[4])))
        elif kind == "cgroup" and "memory" in options:
            mounts.setdefault(1, (fields[3], Path(fields[4])))
    return mounts


def _below(mount: Path, root: str, cgroup: str) -> Path:
    """Returns the directory of `cgroup` under `mount`; containers may show a path that lies outside the mount."""
    inside = cgroup.removeprefix(root.rstrip("/")) if cgroup.startswith(root) else cgroup
    path = mount / inside.strip("/")
    return path if ".." not in path.parts and path.is_dir() else mount


def _read_number(path: Path) -> int | None:
    text = _read_text(path).strip()
    return int(text) if text.isdecimal() else None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
