"""Pressure stall information: the share of wall time that tasks lose to a want of memory or of storage.

Only reads. The cgroup's own figures where the kernel gives them (v2), the machine's otherwise; None where neither is
readable (a kernel without PSI, `psi=0`, or ProcSubset=pid in the unit).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sipd.cgroup import MemoryCgroup


@dataclass(frozen=True, slots=True)
class Stall:
    """Percent of wall time over the last 10 and 60 seconds."""

    avg10: float
    avg60: float


@dataclass(frozen=True, slots=True)
class Pressure:
    """`some`: at least one task waited; `full`: all of them did (None where the kernel does not tell)."""

    some: Stall
    full: Stall | None


def read_pressure(
    resource: str, cgroup: MemoryCgroup | None, pressure_folder: Path = Path("/proc/pressure")
) -> Pressure | None:
    """Returns the pressure on `resource` ("memory" or "io") in the cgroup, else on the machine."""
    if cgroup is not None and cgroup.version == 2:
        found = _read(cgroup.path / f"{resource}.pressure")
        if found is not None:
            return found
    return _read(pressure_folder / resource)


def _read(path: Path) -> Pressure | None:
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError:  # the kernel answers EOPNOTSUPP with psi=0
        return None
    stalls = {line.split()[0]: _stall(line) for line in text.splitlines() if line}
    some = stalls.get("some")
    return None if some is None else Pressure(some, stalls.get("full"))


def _stall(line: str) -> Stall | None:
    """Returns the averages of one line, `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`."""
    values = dict(part.split("=", 1) for part in line.split()[1:] if "=" in part)
    try:
        return Stall(float(values["avg10"]), float(values["avg60"]))
    except (KeyError, ValueError):
        return None
