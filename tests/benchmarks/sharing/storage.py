"""What the storage gives now, by the native readers, under the throttle of the case."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sipd.bench_storage import measure_storage
from sipd.config import Config
from sipd.engine.planned_model import open_planned_model
from sipd.memory import open_ledger
from tests.benchmarks.sharing.jobs import Job, run_job


def measure(model: Path) -> dict[str, Any]:
    """The best rate in bytes/s, and whether it is the disk's own."""
    planned = open_planned_model(Config(model=model))
    rate = measure_storage(planned.library, planned.checkpoint, open_ledger(None), "auto")
    return {"bytes_per_s": rate.bytes_per_s, "is_direct": rate.is_direct}


def storage_line(model: Path, read_bytes_per_s: int | None) -> str:
    """The rate as a remark below a table; blocks for a few seconds."""
    found = run_job(Job("storage", model, 0, read_bytes_per_s=read_bytes_per_s))
    way = "O_DIRECT" if found["is_direct"] else "through the page cache"
    limit = f" under a limit of {read_bytes_per_s / 1e6:.0f} MB/s" if read_bytes_per_s else ""
    return f"Storage just before: {found['bytes_per_s'] / 1e6:.0f} MB/s {way}{limit}."
