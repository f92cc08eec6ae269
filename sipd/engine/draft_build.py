"""Opens, checks and loads the draft model: all of its weights pinned, its parts granted before the target's.

Invariant: a draft model is refused, with the first difference, unless every token id means the same to its target.
"""

from __future__ import annotations

import ctypes
import logging
from dataclasses import dataclass

from sipd.config import Config
from sipd.engine.draft_model import DraftModel
from sipd.engine.draft_vocabulary import check_same_vocabulary
from sipd.engine.kv_cache import pages_for
from sipd.kernels.binding import PAGE_POSITIONS
from sipd.memory import Ledger, Term
from sipd.models.forward import Forward, ForwardShape, activation_bytes, page_bytes
from sipd.models.program import Program
from sipd.models.registry import build_program
from sipd.models.small_tensors import read_f32
from sipd.weights.checkpoint import open_checkpoint
from sipd.weights.plan import Plan, build_plan
from sipd.weights.probe import DEFAULT_READERS
from sipd.weights.reader import WeightFiles
from sipd.weights.stream import Stream, StreamShape, shape_stream, stack_bytes
from sipd.weights.tensor_table import Checkpoint

_LOG = logging.getLogger("sipd.engine")
MIN_WINDOW = 256  # tokens: with less in view, guesses are poor
MAX_WINDOW = 1024  # tokens: what lies further back hardly changes the next word
MIN_ROWS = 64  # of a pass: what a long prompt is caught up with at a time
KV_SHARE = 0.05  # of what is left once the weights are granted; the target needs the rest more


@dataclass(frozen=True, slots=True)
class DraftLayout:
    """The parts of a draft model. Bytes unless the name says otherwise."""

    forward: ForwardShape
    window: int  # tokens
    weight_bytes: int
    kv_bytes: int
    activation_bytes: int

    @property
    def terms(self) -> tuple[Term, ...]:
        """What the ledger is asked for."""
        return (
            Term("draft weights", self.weight_bytes),
            Term("draft KV", self.kv_bytes),
            Term("draft activations", self.activation_bytes),
        )


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """A draft model that was checked against its target but not loaded."""

    checkpoint: Checkpoint
    program: Program
    plan: Plan
    stream: StreamShape
    config: Config
    library: ctypes.CDLL
    n_threads: int

    def layout(self, available: int) -> DraftLayout:
        """The parts when `available` bytes are free; the least there is when that is too little."""
        program, n_requests = self.program, self.config.max_requests
        shape = ForwardShape(max(MIN_ROWS, 2 * n_requests), n_requests, 1, self.n_threads)
        small = 4 * sum(tensor.n_elements for tensor in program.small_tensors())
        weights = small + self.stream.pin_bytes + self.stream.ring_bytes + self.stream.slack_bytes
        weights += stack_bytes(self.stream.n_readers)
        activations = activation_bytes(self.library, program, self.plan, shape)
        most = min(MAX_WINDOW, program.hyperparameters.context_length, self.config.context or MAX_WINDOW)
        page = page_bytes(program)
        by_share = int(KV_SHARE * max(0, available - weights - activations)) // page
        n_pages = min(max(pages_for(min(MIN_WINDOW, most)), by_share), pages_for(most) * n_requests)
        return DraftLayout(
            forward=ForwardShape(shape.max_rows, shape.max_logit_rows, n_pages, self.n_threads),
            window=min(most, n_pages * PAGE_POSITIONS),
            weight_bytes=weights,
            kv_bytes=n_pages * page,
            activation_bytes=activations,
        )

    def grant(self, ledger: Ledger) -> DraftLayout:
        """Asks the ledger for every part at once; raises BudgetError naming the largest term and a budget that fits."""
        layout = self.layout(ledger.remaining())
        ledger.grant_all(layout.terms, lambda _remaining: "no --draft-model")
        return layout


def open_draft_plan(
    config: Config, target: Checkpoint, target_program: Program, library: ctypes.CDLL, n_threads: int
) -> DraftPlan | None:
    """The draft model of `config`, checked; None when there is none or speculation is off.

    Blocks for reads of headers and vocabularies. Raises ModelError, ConfigError or StorageFault.
    """
    if config.draft_model is None or not config.speculation or not config.draft_tokens:
        return None
    checkpoint = open_checkpoint(config.draft_model)
    files = WeightFiles(checkpoint.files, checkpoint.file_sizes, direct="off")
    try:
        program = build_program(checkpoint, lambda tensor: list(read_f32(library, files, tensor)))
    finally:
        files.close()
    sizes = [each.hyperparameters.vocab_size for each in (target_program, program)]
    check_same_vocabulary(target, sizes[0], checkpoint, sizes[1])
    groups = [[product.weight for product in step.products] for step in program.product_steps()]
    if not program.is_tied:
        groups.insert(0, [program.embedding])
    plan = build_plan(groups, config.tile_bytes)
    everything = frozenset(range(len(plan.extents)))
    shape = shape_stream(plan, everything, 1, config.readers or DEFAULT_READERS)
    return DraftPlan(checkpoint, program, plan, shape, config, library, n_threads)


def build_draft_model(  # noqa: PLR0917 - what a build has at hand
    config: Config,
    target: Checkpoint,
    target_program: Program,
    ledger: Ledger,
    library: ctypes.CDLL,
    n_threads: int,
) -> DraftModel | None:
    """The draft model of `config`, its memory granted and its reads begun; None when none is wanted.

    Raises ModelError, ConfigError, BudgetError or StorageFault.
    """
    plan = open_draft_plan(config, target, target_program, library, n_threads)
    if plan is None:
        return None
    if config.isa == "numpy" or not library.sipd_isa_count():
        _LOG.warning("draft model: not used, since passes run in NumPy")
        return None
    return load_draft_model(plan, plan.grant(ledger))


def load_draft_model(plan: DraftPlan, layout: DraftLayout) -> DraftModel:
    """The model of `plan` in memory that was granted; raises StorageFault, DataLoss or SipdError."""
    checkpoint, library = plan.checkpoint, plan.library
    files = WeightFiles(checkpoint.files, checkpoint.file_sizes, direct=plan.config.direct_io)
    stream: Stream | None = None
    try:
        stream = Stream(library, plan.plan, files, plan.stream, drop_cache=False)
        forward = Forward(library, plan.program, plan.plan, stream, files, layout.forward, isa=plan.config.isa)
    except BaseException:
        if stream is not None:
            stream.stop()  # its readers hold the descriptors
        files.close()
        raise
    load_bytes = sum(extent.length for extent in plan.plan.extents)
    _LOG.info(
        "draft model: %s, %d bytes to load, %d KV pages, %d tokens in view",
        checkpoint.path,
        load_bytes,
        layout.forward.n_pages,
        layout.window,
    )
    return DraftModel(forward, stream, load_bytes=load_bytes, window=layout.window)
