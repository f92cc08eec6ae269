"""One measurement as a job: what runs, on which budget, at which read rate; run in a process of its own.

Invariant: the worker that measures shares nothing with the one that asks but this description and one line of JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.benchmarks.peers.limited import drop_page_cache, run_limited

_ROOT = Path(__file__).parents[3]
_TIMEOUT_S = 1200.0


class JobFailed(RuntimeError):
    """A worker ended without a result; the message is the last line that it wrote."""


@dataclass(frozen=True, slots=True)
class Job:
    """`settings` are fields of Config, paths as text; `given` is what the measurement itself takes."""

    measurement: str
    model: Path
    budget: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    read_bytes_per_s: int | None = None
    is_cold: bool = False  # the page cache is dropped first

    def to_json(self) -> str:
        """What the worker is given."""
        return json.dumps(
            {
                "measurement": self.measurement,
                "model": str(self.model),
                "budget": self.budget,
                "settings": dict(self.settings),
                "given": dict(self.given),
            }
        )

    @staticmethod
    def from_json(text: str) -> Job:
        """What the worker was given."""
        found = json.loads(text)
        return Job(found["measurement"], Path(found["model"]), found["budget"], found["settings"], found["given"])


def run_job(job: Job) -> dict[str, Any]:
    """The worker's result; blocks. Raises JobFailed, TimeoutExpired or OSError."""
    given = {name: value for name, value in job.given.items() if isinstance(value, int)}
    speed = f"{job.read_bytes_per_s} bytes/s" if job.read_bytes_per_s else "full speed"
    sys.stderr.write(f"{job.measurement}: {job.model.name} at {speed} {given or ''}\n")
    if job.is_cold:
        drop_page_cache()
    done = run_limited(
        [sys.executable, "-m", "tests.benchmarks.sharing.worker", job.to_json()],
        limit_bytes=None,
        read_bytes_per_s=job.read_bytes_per_s,
        file=job.model,
        timeout_s=_TIMEOUT_S,
        cwd=_ROOT,
    )
    if done.returncode:
        raise JobFailed(f"{job.measurement}: exit {done.returncode}: {last_line(done.stderr)}")
    result: dict[str, Any] = json.loads(last_line(done.stdout))
    return result


def last_line(text: str) -> str:
    """The last line that is not blank, or "nothing was written"."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "nothing was written"
