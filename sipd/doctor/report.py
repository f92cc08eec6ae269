"""Runs all checks and prints them: for people, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from sipd.config import Config
from sipd.doctor.board_checks import check_board
from sipd.doctor.clock_checks import check_clock
from sipd.doctor.disk_checks import check_disks
from sipd.doctor.finding import Finding, Level, fail, warn
from sipd.doctor.machine import Machine
from sipd.doctor.memory_checks import check_memory


def run_doctor(config: Config, *, as_json: bool, machine: Machine | None = None) -> int:
    """Prints one line a check as it ends; returns 1 when something is broken, else 0. Blocks for some seconds."""
    findings: list[Finding] = []
    for finding in examine(config, machine or Machine()):
        findings.append(finding)
        if not as_json:
            print(finding_text(finding), flush=True)
    is_broken = any(finding.level is Level.FAIL for finding in findings)
    if as_json:
        print(json.dumps(report(findings), indent=2))
    else:
        n_warnings = sum(finding.level is Level.WARN for finding in findings)
        print(f"{'something is broken' if is_broken else 'nothing is broken'}, {n_warnings} warnings")
    return int(is_broken)


def examine(config: Config, machine: Machine) -> Iterator[Finding]:
    """Yields the findings of all checks, the machine's first."""
    yield from check_board(machine)
    yield check_clock(machine)
    yield from check_memory(machine, config.budget)
    yield from check_disks(machine, config.model, config.snapshot_dir, config.snapshot_bytes)
    if config.model is None:
        yield warn("model", "none named", "sipd doctor MODEL tells whether it fits and how fast it will be")
        return
    if not Path(config.model).exists():
        yield fail("model", f"{config.model} does not exist", "sipd pull downloads one")
        return
    from sipd.doctor.model_checks import check_model  # noqa: PLC0415 - the kernels and the server, only for a model

    yield from check_model(config)


def report(findings: list[Finding]) -> dict[str, object]:
    """Returns the findings as JSON values."""
    worst = [level for level in (Level.FAIL, Level.WARN) if any(each.level is level for each in findings)]
    return {
        "level": (worst or [Level.OK])[0].value,
        "findings": [
            {"check": each.check, "level": each.level.value, "text": each.text, "advice": each.advice or None}
            for each in findings
        ],
    }


def finding_text(finding: Finding) -> str:
    """Returns `ok    storage      88 MB/s`, with what to do on a line of its own."""
    text = f"{finding.level.value:<5} {finding.check:<12} {finding.text}"
    return f"{text}\n{'':<19}-> {finding.advice}" if finding.advice else text
