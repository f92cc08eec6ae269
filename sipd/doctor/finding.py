"""What a check found: one line, how bad it is, and what to do."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Level(enum.Enum):
    """How bad a finding is; only FAIL makes the exit code 1."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `advice` is a thing to do; empty when nothing needs doing."""

    check: str
    level: Level
    text: str
    advice: str = ""


def ok(check: str, text: str) -> Finding:
    """Returns a finding that needs nothing."""
    return Finding(check, Level.OK, text)


def warn(check: str, text: str, advice: str) -> Finding:
    """Returns a finding that costs speed or safety, with what to do."""
    return Finding(check, Level.WARN, text, advice)


def fail(check: str, text: str, advice: str) -> Finding:
    """Returns a finding that breaks a promise of sipd, with what to do."""
    return Finding(check, Level.FAIL, text, advice)
