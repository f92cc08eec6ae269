"""A model with the layout that a budget gives it, worked out without starting anything.

Used by `sipd plan` and `sipd bench`. Invariant: nothing that the layout describes is allocated here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from sipd.config import Config
from sipd.engine.build import compute_threads, divide_budget, load_kernels
from sipd.engine.draft_build import DraftPlan, open_draft_plan
from sipd.engine.layout import Layout
from sipd.engine.snapshot_build import grant_index
from sipd.errors import ConfigError, SipdError
from sipd.memory import Ledger, default_margin_bytes
from sipd.models.forward import page_bytes
from sipd.models.program import Program
from sipd.models.registry import build_program
from sipd.models.small_tensors import read_f32
from sipd.size import setting_size
from sipd.weights.checkpoint import open_checkpoint
from sipd.weights.reader import WeightFiles
from sipd.weights.tensor_table import Checkpoint

_MIB = 1024**2
_MOST_MIB = 1 << 24  # 16 TiB: no setting beyond this is worth naming

# Grants what the daemon keeps beside the engine, before the engine's parts are divided.
Reserve = Callable[[Ledger], object]


@dataclass(frozen=True)
class PlannedModel:
    """One checkpoint under one configuration."""

    checkpoint: Checkpoint
    program: Program
    config: Config
    library: ctypes.CDLL
    draft: DraftPlan | None = None

    def reserve_engine(self, ledger: Ledger) -> None:
        """Grants what the engine keeps beside the parts of its layout; raises BudgetError."""
        if self.draft is not None:
            self.draft.grant(ledger)
        grant_index(self.config, ledger)

    def layout(self, available: int) -> Layout:
        """The layout of `available` bytes; when that is too little, the least one there is."""
        return divide_budget(self.library, self.program, self.config, available)

    @cached_property
    def n_threads(self) -> int:
        """Compute threads of a pass."""
        return compute_threads(self.config.threads)

    @cached_property
    def page_bytes(self) -> int:
        """Bytes of one KV page."""
        return page_bytes(self.program)

    def fits(self, limit_bytes: int, base_bytes: int, reserve: Reserve) -> bool:
        """Whether a budget of `limit_bytes` holds everything that one request needs."""
        ledger = Ledger(limit_bytes, base_bytes, default_margin_bytes(limit_bytes))
        try:
            reserve(ledger)
            self.reserve_engine(ledger)
        except SipdError:
            return False
        return needed_bytes(self.layout(ledger.remaining())) <= ledger.remaining()

    def nearest_budget(self, base_bytes: int, reserve: Reserve) -> int:
        """The smallest budget in whole MiB that holds one request."""
        low, high = 0, 1
        while not self.fits(high * _MIB, base_bytes, reserve):
            low, high = high, 2 * high
            if high > _MOST_MIB:
                raise ConfigError("context", f"no budget up to {setting_size(_MOST_MIB * _MIB)} would do")
        while high - low > 1:
            middle = (low + high) // 2
            if self.fits(middle * _MIB, base_bytes, reserve):
                high = middle
            else:
                low = middle
        return high * _MIB


def needed_bytes(layout: Layout) -> int:
    """Bytes that the ledger would be asked for."""
    return sum(n_bytes for _, n_bytes in layout.terms)


def open_planned_model(config: Config) -> PlannedModel:
    """Returns the model of `config`, checked but not loaded; raises ModelError, ConfigError or StorageFault."""
    if config.model is None:
        raise ConfigError("model", "not set, wanted a path")
    library = load_kernels(config.isa)
    checkpoint = open_checkpoint(config.model)
    program = read_program(checkpoint, library)
    draft = open_draft_plan(config, checkpoint, program, library, compute_threads(config.threads))
    return PlannedModel(checkpoint, program, config, library, draft)


def read_program(checkpoint: Checkpoint, library: ctypes.CDLL) -> Program:
    """Returns the checked program of a checkpoint; reads rope factors and nothing else of the weights."""
    files = WeightFiles(checkpoint.files, checkpoint.file_sizes, direct="off")
    try:
        return build_program(checkpoint, lambda tensor: list(read_f32(library, files, tensor)))
    finally:
        files.close()
