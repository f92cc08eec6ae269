"""Runs `sipd serve` with a fake model: `python -m tests.unit.server.run_fake_daemon FAULT serve …`."""

from __future__ import annotations

import os
import signal
import sys
import types

from sipd.cli import main
from sipd.config import Config
from sipd.errors import DataLoss, UnsupportedModel
from sipd.memory import Ledger
from sipd.server.served_model import ServedModel
from tests.unit.server.fakes import FakeEngine, served_model


def load_model(config: Config) -> tuple[ServedModel, Ledger]:
    """Fails or returns a fake model, as FAULT says."""
    fault = sys.argv[1]
    if fault == "unsupported":
        raise UnsupportedModel(f"{config.model}: architecture 'mamba' is not supported")
    engine = FakeEngine(reply=[65] * 5, is_alive=fault != "dead")
    if fault == "slow":  # replies once draining has begun
        engine.gate.clear()
        engine.on_drain = engine.gate.set
    if fault == "loss":
        engine.first_error = DataLoss("/m.gguf", 4096, "the file ends there")
    if fault == "endless":
        engine.gate.clear()
    return served_model(engine), Ledger(512 << 20, 30 << 20, 4 << 20)


class _Loader(types.ModuleType):
    """Stands in for the module that loads models; the fault "hangup" asks for a reload while it is imported."""

    def __getattr__(self, name: str) -> object:
        if name != "load_model":
            raise AttributeError(name)
        if sys.argv[1] == "hangup":
            os.kill(os.getpid(), signal.SIGHUP)
        return load_model


if __name__ == "__main__":
    sys.modules["sipd.server.model_loader"] = _Loader("sipd.server.model_loader")
    sys.exit(main(sys.argv[2:]))
