"""One measured program run once: in its own process, under the case's limit, cold where there is a limit."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sipd.bench_storage import measure_storage
from sipd.config import Config
from sipd.engine.planned_model import open_planned_model
from sipd.memory import open_ledger
from tests.benchmarks.peers.cases import Case
from tests.benchmarks.peers.limited import drop_page_cache, run_limited

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[2]


@dataclass(frozen=True, slots=True)
class Run:
    """What one run gave: the program's JSON, or why there is none."""

    report: dict[str, Any]
    failure: str
    peak_bytes: int  # of the whole cgroup, page cache included

    def metric(self, name: str) -> float | None:
        """A metric of the ratio table: tokens per second, or seconds for "first_token"."""
        if self.failure:
            return None
        if name == "first_token":
            return float(self.report["first_token_s"])
        if name == "decode":
            return float(self.report["decode_tokens_per_s"])
        rates = sorted(self.report["prefill_tokens_per_s"][name.removeprefix("prefill_")])
        return float(rates[len(rates) // 2]) if rates else None


@dataclass(frozen=True, slots=True)
class Settings:
    """What all runs share."""

    peer_python: Path
    threads: int
    tokens: int | None
    repetitions: int
    timeout_s: float


def run_sipd(case: Case, model: Path, settings: Settings) -> Run:
    """Runs sipd once."""
    return _run([sys.executable, "-m", "tests.benchmarks.peers.peer_sipd"], case, model, settings)


def run_peer(case: Case, model: Path, settings: Settings) -> Run:
    """Runs the peer once."""
    command = [str(settings.peer_python), str(_HERE / "peer_llama.py")]
    return _run([*command, *([] if case.peer_repacks else ["--no-repack"])], case, model, settings)


def _run(command: list[str], case: Case, model: Path, settings: Settings) -> Run:
    if case.is_limited:
        drop_page_cache()
    command += [str(model), "--started", str(time.monotonic()), "--threads", str(settings.threads)]
    command += ["--prompt-lengths", ",".join(map(str, case.prompt_lengths))]
    command += ["--tokens", str(settings.tokens or case.tokens)]
    command += ["--repetitions", str(1 if case.is_limited else max(2, settings.repetitions))]
    try:
        done = run_limited(
            command,
            limit_bytes=case.limit_bytes(model.stat().st_size),
            read_bytes_per_s=case.read_bytes_per_s,
            file=model,
            timeout_s=settings.timeout_s,
            cwd=_ROOT,
        )
    except subprocess.TimeoutExpired:
        return Run({}, f"took longer than {settings.timeout_s:.0f} s", 0)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        why = "killed for memory" if done.oom_kills else f"exit {done.returncode}: {last}"
        return Run({}, why, done.peak_bytes)
    report: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return Run(report, "", done.peak_bytes)


@dataclass(frozen=True, slots=True)
class DiskRates:
    """Bytes per second that the disk gives at its best, and when a processor loads what was read; 0: not measured."""

    best: float = 0.0
    loaded: float = 0.0


def disk_rates(case: Case, model: Path) -> DiskRates:
    """What the disk gives now, or the throttle where that is lower."""
    planned = open_planned_model(Config(model=model))
    found = measure_storage(planned.library, planned.checkpoint, open_ledger(None), "auto", visit=_load)
    rates = (found.bytes_per_s, found.visited_bytes_per_s or found.bytes_per_s)
    return DiskRates(*(min(rate, case.read_bytes_per_s or rate) for rate in rates))


def _load(address: int, n_bytes: int) -> None:
    """Loads every byte once, as any program that computes with them has to."""
    np.frombuffer(memoryview((ctypes.c_uint8 * n_bytes).from_address(address)), np.uint8).max()
