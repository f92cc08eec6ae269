"""Machines as trees of files: Raspberry Pis, a container and an old host, for the doctor to look at."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sipd.doctor.machine import DiskSpace, Machine

GIB = 1024**3
NOON = 1_790_000_000.0  # in 2026

ROOMY = DiskSpace(32 * GIB, 20 * GIB, is_read_only=False)
CGROUP2 = "36 1 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
ROOT_DISK = "22 1 179:2 / / rw,noatime - ext4 /dev/mmcblk0p2 rw\n"
PI: dict[str, str] = {
    "/proc/sys/kernel/osrelease": "6.6.51+rpt-rpi-v8",
    "/proc/device-tree/model": "Raspberry Pi 4 Model B Rev 1.4\0",
    "/proc/meminfo": "MemTotal:  928000 kB\nMemAvailable:  700000 kB\nSwapTotal: 0 kB",
    "/proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0",
    "/proc/self/cgroup": "0::/user.slice/session-1.scope",
    "/proc/self/mountinfo": ROOT_DISK + CGROUP2,
    "/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids",
    "/sys/fs/cgroup/user.slice/session-1.scope/memory.max": "max",
    "/sys/fs/cgroup/system.slice/sipd.service/memory.max": str(512 * 1024**2),
    "/sys/fs/cgroup/system.slice/sipd.service/memory.high": "max",
    "/sys/fs/cgroup/system.slice/sipd.service/memory.swap.max": "0",
    "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    "/sys/devices/platform/soc/soc:firmware/get_throttled": "0",
    "/sys/class/thermal/thermal_zone0/temp": "51000",
    "/sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "ondemand",
    "/sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq": "600000",
    "/sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq": "1800000",
    "/sys/devices/system/cpu/cpufreq/policy0/cpuinfo_max_freq": "1800000",
    "/run/systemd/timesync/synchronized": "",
}
PI_5 = PI | {
    "/proc/sys/kernel/osrelease": "6.12.25+rpt-rpi-2712",
    "/proc/device-tree/model": "Raspberry Pi 5 Model B Rev 1.0\0",
    "/sys/class/hwmon/hwmon1/in0_lcrit_alarm": "0",
}
del PI_5["/sys/devices/platform/soc/soc:firmware/get_throttled"]
CONTAINER: dict[str, str] = {
    "/proc/sys/kernel/osrelease": "6.1.0",
    "/proc/meminfo": "MemTotal:  8000000 kB\nMemAvailable:  7000000 kB\nSwapTotal: 1000000 kB",
    "/proc/self/cgroup": "0::/",
    "/proc/self/mountinfo": "22 1 0:50 / / rw - overlay overlay rw\n" + CGROUP2,
    "/sys/fs/cgroup/cgroup.controllers": "cpu memory",
    "/sys/fs/cgroup/memory.max": str(300 * 1024**2),
    "/sys/fs/cgroup/memory.swap.max": "max",
}
OLD_HOST: dict[str, str] = {
    "/proc/sys/kernel/osrelease": "4.19.0",
    "/proc/meminfo": "MemTotal:  2000000 kB\nMemAvailable:  1000000 kB\nSwapTotal: 0 kB",
    "/proc/self/cgroup": "4:memory:/a\n0::/a",
    "/proc/self/mountinfo": ROOT_DISK + "36 1 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
    "/sys/fs/cgroup/memory/a/memory.limit_in_bytes": str(400 * 1024**2),
}


def without(files: Mapping[str, str], *names: str) -> dict[str, str]:
    """Returns the files but those whose name begins with one of `names`."""
    return {name: text for name, text in files.items() if not name.startswith(names)}


def build(
    root: Path,
    files: Mapping[str, str],
    *,
    architecture: str = "aarch64",
    page_bytes: int = 4096,
    now: float = NOON,
    space: DiskSpace | None = ROOMY,
    clock_state: int | None = 0,
) -> Machine:
    """Writes the tree below `root` and returns the machine."""
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return Machine(
        root,
        architecture=architecture,
        page_bytes=page_bytes,
        now=lambda: now,
        disk_space=lambda _path: space,
        clock_state=lambda: clock_state,
    )
