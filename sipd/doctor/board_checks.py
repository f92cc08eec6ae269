"""Checks of the board: kernel, huge pages, power, heat and clock frequency."""

from __future__ import annotations

from collections.abc import Iterator

from sipd.doctor.finding import Finding, ok, warn
from sipd.doctor.machine import Machine

_64_BIT = ("aarch64", "x86_64")
_THROTTLED = "/sys/devices/platform/soc/soc:firmware/get_throttled"
# Bits of the firmware's answer (Raspberry Pi documentation, vcgencmd get_throttled); the same + 16: since boot
_NOW = {0: "undervoltage", 1: "frequency capped", 2: "throttled", 3: "soft temperature limit"}
_HOT_MILLIDEGREES = 80_000  # the firmware slows a Raspberry Pi down from here on
_POWER_ADVICE = "use the board's own power supply and a short cable; a USB disk may need a powered hub"
_HEAT_ADVICE = "cool the board: a heat sink or a fan"


def check_board(machine: Machine) -> Iterator[Finding]:
    """Yields the findings about the board."""
    model = machine.text("/proc/device-tree/model") or machine.text("/sys/firmware/devicetree/base/model")
    release = machine.text("/proc/sys/kernel/osrelease") or "unknown"
    text = f"{model or 'board'}: Linux {release}, {machine.architecture}, pages of {machine.page_bytes // 1024} KiB"
    if machine.architecture in _64_BIT:
        yield ok("kernel", text)
    else:
        yield warn("kernel", text, "use a 64-bit system: the fast kernels are for aarch64 and x86_64")
    yield _check_huge_pages(machine)
    yield _check_power(machine)
    yield _check_heat(machine)
    yield _check_frequency(machine)
    yield _check_pressure(machine)


def _check_huge_pages(machine: Machine) -> Finding:
    text = machine.text("/sys/kernel/mm/transparent_hugepage/enabled")
    chosen = None if text is None else next((word.strip("[]") for word in text.split() if word.startswith("[")), None)
    if chosen in ("always", "madvise"):
        return ok("huge pages", chosen)
    found = "not in this kernel" if chosen is None else chosen
    advice = (
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled: direct reads into small pages reach half the rate"
    )
    if chosen is None:
        advice = "nothing needed; direct reads of a fast disk reach about half of its rate with this kernel"
    return warn("huge pages", found, advice)


def _check_power(machine: Machine) -> Finding:
    text = machine.text(_THROTTLED)
    if text is not None:
        try:
            bits = int(text, 16)
        except ValueError:
            bits = 0
        now = [name for bit, name in _NOW.items() if bits >> bit & 1]
        since_boot = [name for bit, name in _NOW.items() if bits >> (bit + 16) & 1]
        if now:
            advice = _POWER_ADVICE if "undervoltage" in now else _HEAT_ADVICE
            return warn("power", f"now: {', '.join(now)}", advice)
        if since_boot:
            advice = _POWER_ADVICE if "undervoltage" in since_boot else _HEAT_ADVICE
            return warn("power", f"since boot: {', '.join(since_boot)}", advice)
        return ok("power", "no undervoltage and no throttling since boot")
    alarms = machine.matching("/sys/class/hwmon/hwmon*/in0_lcrit_alarm")
    if any(machine.number(name) == 1 for name in alarms):
        return warn("power", "undervoltage", _POWER_ADVICE)
    return ok("power", "no undervoltage" if alarms else "not told by this board")


def _check_heat(machine: Machine) -> Finding:
    found = {name: machine.number(name) for name in machine.matching("/sys/class/thermal/thermal_zone*/temp")}
    hottest = max((value for value in found.values() if value is not None), default=None)
    if hottest is None:
        return ok("heat", "not told by this board")
    text = f"{hottest / 1000:.0f} C"
    return warn("heat", text, _HEAT_ADVICE) if hottest >= _HOT_MILLIDEGREES else ok("heat", text)


def _check_frequency(machine: Machine) -> Finding:
    policies = machine.matching("/sys/devices/system/cpu/cpufreq/policy*")
    if not policies:
        return ok("frequency", "not told by this machine")
    lines: list[str] = []
    problems: list[str] = []
    for policy in policies:
        governor = machine.text(f"{policy}/scaling_governor") or "unknown"
        current, allowed, most = (
            machine.number(f"{policy}/{name}") for name in ("scaling_cur_freq", "scaling_max_freq", "cpuinfo_max_freq")
        )
        now = "" if current is None else f" at {current // 1000} of"
        lines.append(f"{governor}{now} {(allowed or most or 0) // 1000} MHz")
        if governor == "powersave" and current is not None and most is not None and current < most:
            problems.append("choose the governor ondemand or schedutil")
        if allowed is not None and most is not None and allowed < most:
            problems.append(f"raise scaling_max_freq: the processor can do {most // 1000} MHz")
    text = ", ".join(dict.fromkeys(lines))
    return warn("frequency", text, "; ".join(dict.fromkeys(problems))) if problems else ok("frequency", text)


def _check_pressure(machine: Machine) -> Finding:
    if machine.text("/proc/pressure/memory") is None:
        return warn(
            "pressure", "the kernel does not tell (PSI is off)", "append 'psi=1' to the kernel's line; optional"
        )
    return ok("pressure", "told by the kernel")
