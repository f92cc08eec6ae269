"""The machine on which figures were measured, in one line."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def machine_line(proc: Path = Path("/proc")) -> str:
    """CPU, processors allowed, memory, kernel and Python."""
    memory = _field(proc / "meminfo", "MemTotal").removesuffix(" kB")
    gib = f"{int(memory) / 1024**2:.0f} GiB" if memory.isdecimal() else "memory unknown"
    cpu = _field(proc / "cpuinfo", "model name") or platform.machine()
    return (
        f"{cpu}, {len(os.sched_getaffinity(0))} processors allowed, {gib}, Linux {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def _field(file: Path, name: str) -> str:
    """The first value of that name in a file of `name: value` lines; empty when there is none."""
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        found, _, value = line.partition(":")
        if found.strip() == name:
            return value.strip()
    return ""
