"""Checks of the clock: certificates and the journal's times hang on it; deadlines and timings do not."""

from __future__ import annotations

import time

from sipd.doctor.finding import Finding, ok, warn
from sipd.doctor.machine import Machine

_FIRST_SANE_YEAR = 2025  # no release of sipd is older: a board without a battery starts in 1970 or at its last stop
_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised
_SYNCHRONISED = "/run/systemd/timesync/synchronized"


def check_clock(machine: Machine) -> Finding:
    """Returns the finding about the clock."""
    now = time.gmtime(machine.now())
    text = time.strftime("%Y-%m-%d %H:%M UTC", now)
    advice = "timedatectl set-ntp true, and wait for time-sync.target; a board without a battery needs the network"
    if now.tm_year < _FIRST_SANE_YEAR:
        return warn("clock", f"{text}: certificates will be refused as not yet valid", advice)
    if machine.path(_SYNCHRONISED).exists():
        return ok("clock", f"{text}, synchronised")
    state = machine.clock_state()
    if state is None:
        return ok("clock", f"{text}; whether it is synchronised is not told")
    if state == _TIME_ERROR:
        return warn("clock", f"{text}, not synchronised", advice)
    return ok("clock", f"{text}, synchronised")
