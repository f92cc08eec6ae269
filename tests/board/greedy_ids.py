"""Greedy ids of some prompts, with nothing but the standard library and sipd: runs on a board as well.

python -m tests.board.greedy_ids MODEL ISA N_TOKENS < PROMPTS.json > IDS.json
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from sipd.config import Config
from sipd.engine.build import build_engine
from sipd.engine.request import Outcome, Request, SampledToken
from sipd.engine.sampling import SamplingOptions
from sipd.memory import Ledger
from sipd.weights.checkpoint import open_checkpoint

BUDGET = 512 << 20


class Collector:
    """Keeps the ids of one request."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.error: Exception | None = None
        self.is_done = threading.Event()

    def started(self) -> None:
        """Nothing to do."""

    def token(self, token: SampledToken) -> bool:
        """Keeps the id."""
        self.ids.append(token.token_id)
        return False

    def finished(self, outcome: Outcome) -> None:
        """Lets `greedy_ids` go on."""
        self.error = outcome.error
        self.is_done.set()


def greedy_ids(model: Path, isa: str, prompts: list[list[int]], n_tokens: int) -> list[list[int]]:
    """Ids of all prompts, run at the same time."""
    config = Config(model=model, budget=BUDGET, isa=isa)
    engine = build_engine(config, open_checkpoint(model), Ledger(BUDGET, 32 << 20, 8 << 20))
    try:
        collectors = [Collector() for _ in prompts]
        for index, (prompt, collector) in enumerate(zip(prompts, collectors, strict=True)):
            engine.submit(Request(f"ids-{index}", tuple(prompt), n_tokens, SamplingOptions(), collector))
        for collector in collectors:
            collector.is_done.wait()
            if collector.error is not None:
                raise collector.error
        return [collector.ids for collector in collectors]
    finally:
        engine.stop()


if __name__ == "__main__":
    json.dump(greedy_ids(Path(sys.argv[1]), sys.argv[2], json.load(sys.stdin), int(sys.argv[3])), sys.stdout)
