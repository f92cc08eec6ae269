"""Checks of the memory limit: is there one, is it kept, and is it the whole truth."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sipd.cgroup import MemoryCgroup
from sipd.doctor.finding import Finding, fail, ok, warn
from sipd.doctor.machine import Machine
from sipd.size import format_size

_FLAGS = "cgroup_enable=memory cgroup_memory=1"
_KERNEL_LINES = ("/boot/firmware/cmdline.txt", "/boot/cmdline.txt")  # Raspberry Pi OS since bookworm, and before
_UNITS = ("system.slice/sipd.service", "system.slice/system-sipd.slice/sipd@*.service")


def check_memory(machine: Machine, budget_bytes: int | None) -> Iterator[Finding]:
    """Yields the findings about limits, swap and what the machine has."""
    if machine.is_controller_missing():
        yield fail("cgroup", "the kernel's memory controller is off: MemoryMax= of a unit is ignored", _advice(machine))
        yield from _check_machine(machine, None, budget_bytes)
        return
    own = machine.cgroup()
    if own is None:
        text = "no cgroups are mounted here: no unit or container can limit memory"
        yield warn("cgroup", text, "set the budget: --budget 512M, or budget in the configuration")
        yield from _check_machine(machine, None, budget_bytes)
        return
    cgroup, name = _unit_cgroup(own)
    if cgroup.version == 1:
        text = "cgroup v1 accounts memory: limits work, but events and pressure of the unit are not told"
        yield warn("cgroup", text, "boot with cgroup v2: systemd.unified_cgroup_hierarchy=1 on the kernel's line")
    else:
        yield ok("cgroup", f"v2 accounts memory of {name}")
    yield from _check_limit(cgroup, name, budget_bytes)
    yield from _check_machine(machine, cgroup, budget_bytes)


def _advice(machine: Machine) -> str:
    """Returns what to add to the kernel's line, and where; the firmware's own flag must not be fought with in vain."""
    file = next((name for name in _KERNEL_LINES if machine.path(name).exists()), None)
    disables = "cgroup_disable=memory" in (machine.text("/proc/cmdline") or "").split()
    if file is not None:
        return f"append '{_FLAGS}' to the one line of {file} and reboot"
    reason = "it was booted with cgroup_disable=memory; " if disables else ""
    return f"{reason}boot with '{_FLAGS}' on the kernel's line (on Raspberry Pi OS: /boot/firmware/cmdline.txt)"


def _unit_cgroup(own: MemoryCgroup) -> tuple[MemoryCgroup, str]:
    """Returns the group of the running unit; without one this process's, which is a shell's or a container's."""
    for pattern in _UNITS:
        for path in sorted(own.mount.glob(pattern)):
            return MemoryCgroup(own.version, path, own.mount), path.name
    inside = own.path.relative_to(own.mount)
    return own, "this shell" if inside != Path() else "this container or machine"


def _check_limit(cgroup: MemoryCgroup, name: str, budget_bytes: int | None) -> Iterator[Finding]:
    hard, limit = cgroup.hard_limit_bytes(), cgroup.limit_bytes()
    if hard is None:
        text = f"no MemoryMax= for {name}"
        if budget_bytes is None:
            advice = (
                "set MemoryMax=512M and MemorySwapMax=0 in the unit, or --budget: else what is free at start counts"
            )
            yield warn("limit", text, advice)
        else:
            yield ok("limit", f"{text}; the configured budget of {format_size(budget_bytes)} is the limit")
    elif limit is not None and limit < hard:
        text = f"MemoryHigh= of {format_size(limit)} lies below MemoryMax= of {format_size(hard)} for {name}"
        advice = "remove MemoryHigh=: above it a service without swap crawls; sipd takes it for the limit until then"
        yield warn("limit", text, advice)
    else:
        yield ok("limit", f"{format_size(hard)} for {name}")


def _check_machine(machine: Machine, cgroup: MemoryCgroup | None, budget_bytes: int | None) -> Iterator[Finding]:
    meminfo = machine.meminfo()
    total = meminfo.get("MemTotal")
    if total is None:
        yield warn("memory", "/proc/meminfo cannot be read", "run the doctor outside of the unit's sandbox")
        return
    limit = None if cgroup is None else cgroup.limit_bytes()
    wanted = min((n for n in (limit, budget_bytes) if n is not None), default=None)
    text = f"{format_size(total)}, {format_size(meminfo.get('MemAvailable', 0))} available"
    if wanted is not None and wanted > total:
        advice = f"set a limit below {format_size(total)}: what lies above it cannot be kept"
        yield warn("memory", f"{text}; the limit of {format_size(wanted)} is larger than the machine", advice)
    else:
        yield ok("memory", text)
    if not meminfo.get("SwapTotal"):
        yield ok("swap", "none")
    elif cgroup is not None and cgroup.version == 2 and cgroup.swap_limit_bytes() == 0:
        yield ok("swap", f"{format_size(meminfo['SwapTotal'])}, none of it for this service")
    else:
        text = f"{format_size(meminfo['SwapTotal'])}, and the service may be swapped out to it"
        yield warn("swap", text, "set MemorySwapMax=0 in the unit: swapped weights are read twice, and wear the card")
