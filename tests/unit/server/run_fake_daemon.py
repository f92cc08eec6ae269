"""Runs `sipd serve` with a fake model: `python -m tests.unit.server.run_fake_daemon FAULT serve …`."""

from __future__ import annotations

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


if __name__ == "__main__":
    module = types.ModuleType("sipd.server.model_loader")
    module.load_model = load_model  # type: ignore[attr-defined]
    sys.modules["sipd.server.model_loader"] = module
    sys.exit(main(sys.argv[2:]))
