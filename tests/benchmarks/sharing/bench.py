"""The engine that a worker measures, with the model's text side where a measurement wants it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sipd.config import Config
from sipd.engine.build import build_engine
from sipd.engine.loop import Engine
from sipd.memory import Ledger, open_ledger
from sipd.server.model_text import ModelText, read_model_text
from sipd.weights.checkpoint import open_checkpoint
from tests.benchmarks.sharing.jobs import Job

_PATHS = ("snapshot_dir", "draft_model")


@dataclass(frozen=True, slots=True)
class Bench:
    """A running engine, its ledger, and the text side; None when it was not wanted."""

    engine: Engine
    ledger: Ledger
    text: ModelText | None

    def facts(self) -> dict[str, Any]:
        """What every measurement reports."""
        status = self.engine.status()
        return {
            "budget_bytes": self.ledger.limit_bytes,
            "anonymous_bytes": self.ledger.sample_peak(),
            "pinned_bytes": status.pinned_bytes,
            "plan_bytes": status.plan_bytes,
            "max_rows": status.max_rows,
            "row_cap": status.row_cap,
            "isa": self.engine.isa,
        }


@contextmanager
def running_bench(job: Job, *, needs_text: bool) -> Iterator[Bench]:
    """Builds the engine of a job; stops it at the end."""
    config = replace(Config(model=job.model, budget=job.budget), **typed(job.settings))
    checkpoint = open_checkpoint(job.model)
    text = read_model_text(checkpoint) if needs_text else None  # first: it is part of the process that is granted
    ledger = open_ledger(config.budget)
    engine = build_engine(config, checkpoint, ledger)
    try:
        yield Bench(engine, ledger, text)
    finally:
        engine.stop()


def typed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with their paths as paths: JSON has none."""
    return {name: Path(value) if name in _PATHS else value for name, value in settings.items()}
