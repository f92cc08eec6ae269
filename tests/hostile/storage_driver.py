"""Runs an engine over a model in a process of its own, under pread_shim.c, by a script of steps given as JSON.

`python -m tests.hostile.storage_driver MODEL SCRIPT` prints one JSON object: {"answers": [...], "lines": [...]}.
Steps: ["set", name, value]; ["set_in", seconds, name, value]; ["start", {config}, budget]; ["stop"]; ["status"];
["ask", max_tokens] and ["ask_all", n, max_tokens]; ["truncate_at", token, fraction] before an ask; ["replace", path].
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sipd.config import Config
from sipd.engine.build import build_engine
from sipd.engine.loop import Engine
from sipd.engine.request import Outcome, Request, SampledToken
from sipd.engine.sampling import SamplingOptions
from sipd.errors import SipdError, StorageFault
from sipd.memory import Ledger
from sipd.weights.checkpoint import open_checkpoint

WAIT_S = 60.0
PROMPT = tuple(range(5, 30))
DEFAULTS = Config(threads=1, context=256, pin=False, tile_bytes=4096, ring_slots=3, readers=2, max_requests=4)


class Sink:
    """Keeps ids and end; `on_token` runs on the engine's thread."""

    def __init__(self, on_token: Callable[[int], None]) -> None:
        self.ids: list[int] = []
        self.outcomes: queue.Queue[Outcome] = queue.Queue()
        self._on_token = on_token

    def started(self) -> None:
        """Nothing to do."""

    def token(self, token: SampledToken) -> bool:
        """Keeps a token."""
        self.ids.append(token.token_id)
        self._on_token(len(self.ids))
        return False

    def finished(self, outcome: Outcome) -> None:
        """Keeps the end."""
        self.outcomes.put(outcome)


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps one line."""
        self.lines.append(record.getMessage())


class Driver:
    """Runs steps one after another."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self._engine: Engine | None = None
        self._truncation: tuple[int, float] | None = None
        self._timers: list[threading.Timer] = []
        self._shim = ctypes.CDLL(None)
        self.answers: list[object] = []

    def run(self, step: list[Any]) -> None:
        """Runs one step; what it finds joins `answers`."""
        getattr(self, f"do_{step[0]}")(*step[1:])

    def do_set(self, name: str, value: int) -> None:
        """Changes a setting of the shim."""
        self._shim.shim_set(name.encode(), ctypes.c_long(value))

    def do_set_in(self, seconds: float, name: str, value: int) -> None:
        """Changes a setting of the shim after a while."""
        timer = threading.Timer(seconds, self.do_set, (name, value))
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def do_start(self, values: dict[str, Any], n_bytes: int = 1 << 28) -> None:
        """Starts an engine, or tells why it does not start."""
        config = replace(DEFAULTS, model=self._model, **values)
        try:
            self._engine = build_engine(config, open_checkpoint(self._model), Ledger(n_bytes, 0, 0))
        except SipdError as error:
            self.answers.append(_fault(error))

    def do_stop(self) -> None:
        """Stops the engine."""
        assert self._engine is not None
        self._engine.stop()
        self._engine = None

    def do_status(self) -> None:
        """Whether the engine is alive and reads directly, and how many bytes it keeps."""
        assert self._engine is not None
        status = self._engine.status()
        self.answers.append(
            {
                "is_alive": status.is_alive,
                "is_direct": self._engine.uses_direct_io,
                "pinned_bytes": status.pinned_bytes,
            }
        )

    def do_truncate_at(self, token: int, fraction: float) -> None:
        """Has the model file shrink when the next request has so many tokens."""
        self._truncation = (token, fraction)

    def do_replace(self, other: str) -> None:
        """Puts another file in the model's place."""
        Path(other).rename(self._model)

    def do_ask(self, max_tokens: int) -> None:
        """One request."""
        self.do_ask_all(1, max_tokens)

    def do_ask_all(self, n_requests: int, max_tokens: int) -> None:
        """Several requests at once, each with a prompt of its own."""
        assert self._engine is not None
        sinks = [Sink(self._on_token) for _ in range(n_requests)]
        for index, sink in enumerate(sinks):
            prompt = tuple((token + 17 * index) % 300 for token in PROMPT)
            sampling = SamplingOptions(temperature=0.8, seed=index)
            self._engine.submit(Request(f"r{index}", prompt, max_tokens, sampling, sink))
        for sink in sinks:
            outcome = sink.outcomes.get(timeout=WAIT_S)
            answer: dict[str, object] = {"ids": sink.ids, "reason": outcome.reason.value}
            if outcome.error is not None:
                answer |= _fault(outcome.error)
            self.answers.append(answer)

    def _on_token(self, n_tokens: int) -> None:
        if self._truncation is not None and self._truncation[0] == n_tokens:
            os.truncate(self._model, int(self._model.stat().st_size * self._truncation[1]))


def _fault(error: SipdError) -> dict[str, object]:
    found: dict[str, object] = {"error": type(error).__name__, "message": str(error), "status": error.grpc_status}
    if isinstance(error, StorageFault):
        found |= {"path": error.path, "offset": error.offset}
    return found


def main() -> None:
    """Runs the script of the command line."""
    lines = Lines()
    logging.getLogger("sipd").addHandler(lines)
    driver = Driver(Path(sys.argv[1]))
    for step in json.loads(sys.argv[2]):
        driver.run(step)
    print(json.dumps({"answers": driver.answers, "lines": lines.lines}))


if __name__ == "__main__":
    main()
