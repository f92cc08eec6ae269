"""Builds an engine from a checkpoint: program, layout, grants, files, stream, forward, thread, in that order.

Invariant: every byte is granted before it is allocated.
"""

from __future__ import annotations

import ctypes
import logging
import os
from dataclasses import replace
from typing import cast

from sipd.config import Config
from sipd.engine.draft_build import build_draft_model
from sipd.engine.draft_model import DraftModel
from sipd.engine.executor import Executor
from sipd.engine.kv_cache import PagePool, pages_for
from sipd.engine.layout import KV_TERM, MIN_CONTEXT, PINS_TERM, Divider, Layout, largest_context
from sipd.engine.loop import Engine, EngineLimits
from sipd.engine.page_memory import PageMemory
from sipd.engine.pins import Pins
from sipd.engine.prefix_cache import PrefixCache
from sipd.engine.reuse import Reuse
from sipd.engine.sampler import Sampler
from sipd.engine.sessions import Sessions
from sipd.engine.snapshot_build import grant_index, open_snapshots
from sipd.errors import ConfigError, SipdError
from sipd.kernels import binding
from sipd.memory import Grant, Ledger, Term
from sipd.models.forward import Forward, page_bytes
from sipd.models.program import Program
from sipd.models.registry import build_program
from sipd.models.small_tensors import read_f32
from sipd.weights.probe import ProbeResult, probe_storage
from sipd.weights.reader import WeightFiles
from sipd.weights.stream import Stream
from sipd.weights.tensor_table import Checkpoint

_LOG = logging.getLogger("sipd.engine")


def build_engine(config: Config, checkpoint: Checkpoint, ledger: Ledger) -> Engine:
    """A running engine; raises ModelError, BudgetError, ConfigError or StorageFault. Reads begin at once."""
    library = load_kernels(config.isa)
    files = WeightFiles(checkpoint.files, checkpoint.file_sizes, direct=config.direct_io)
    stream: Stream | None = None
    draft: DraftModel | None = None
    try:
        program = build_program(checkpoint, lambda tensor: list(read_f32(library, files, tensor)))
        draft = build_draft_model(config, checkpoint, program, ledger, library, compute_threads(config.threads))
        grant_index(config, ledger)
        layout = divide_budget(library, program, config, ledger.remaining())
        grants = {grant.name: grant for grant in grant_layout(layout, program, ledger)}
        if uses_twin(library, config.isa):
            forward, stream = _twin(program, layout, files)
            probe = ProbeResult()
        else:
            shape = layout.stream
            probe = ProbeResult((), shape.n_readers, max(extent.length for extent in layout.plan.extents))
            if config.readers is None and layout.streamed_bytes > 0 and files.uses_direct_io:
                probe = _probe(library, layout, files)
                shape = replace(shape, n_readers=probe.n_readers)
            stream = Stream(library, layout.plan, files, shape, drop_cache=layout.streamed_bytes > 0)
            forward = Forward(library, program, layout.plan, stream, files, layout.forward, isa=config.isa)
    except BaseException:
        if draft is not None:
            draft.close()
        if stream is not None:
            stream.stop()  # its readers hold the descriptors
        files.close()
        raise
    executor = Executor(
        forward,
        stream,
        streamed_plan_bytes=layout.streamed_bytes,
        pinned_bytes=layout.pinned_weight_bytes,
        contract=library.sipd_contract_version(),
        probe=probe,
    )
    if not uses_twin(library, config.isa):
        executor.use_pins(Pins(program, layout, stream, forward, grants[PINS_TERM]))
    limits = EngineLimits(
        context_tokens=layout.context_tokens,
        max_active=min(config.max_requests, layout.forward.max_rows),
        max_queued=config.max_queued,
        rows_while_decoding=config.rows_while_decoding,
        draft_tokens=config.draft_tokens if config.speculation else 0,
    )
    pool = PagePool(layout.forward.n_pages, page_bytes(program))
    reuse = _reuse(config, pool, forward)
    least = pages_for(min(layout.context_tokens, 2 * MIN_CONTEXT))  # a prompt, and the reply of a default length
    page_memory = PageMemory(pool, grants[KV_TERM], forward.page, least)
    sampler = Sampler(library, program.hyperparameters.vocab_size)
    snapshots = open_snapshots(config, checkpoint, reuse, forward, executor.arithmetic_contract, ledger)
    return Engine(executor, sampler, reuse, limits, draft_model=draft, snapshots=snapshots, page_memory=page_memory)


def _reuse(config: Config, pool: PagePool, forward: Forward) -> Reuse:
    """What is kept of ended requests, in the pages that live ones do not need."""
    if not config.prefix_cache:
        return Reuse(pool)
    cache = PrefixCache(pool)
    return Reuse(pool, cache, Sessions(cache, config.max_sessions, config.session_idle_s), forward.copy_page)


def _probe(library: ctypes.CDLL, layout: Layout, files: WeightFiles) -> ProbeResult:
    """Reads in flight that this storage wants; what was measured goes to the log."""
    result = probe_storage(library, layout.plan, files, layout.stream)
    measured = ", ".join(f"{depth} in flight {rate / 1e6:.0f} MB/s" for depth, _, rate in result.rates)
    _LOG.info("storage probe: %s; reading with %d", measured or "no answer", result.n_readers)
    return result


def divide_budget(library: ctypes.CDLL, program: Program, config: Config, available: int) -> Layout:
    """The layout of `available` bytes."""
    return Divider(library, program, config, n_threads=compute_threads(config.threads), available=available).divide()


def grant_layout(layout: Layout, program: Program, ledger: Ledger) -> list[Grant]:
    """The grants of every part, in the order of `Layout.terms`.

    Raises BudgetError naming the largest term and what would fit.
    """
    others = sum(n_bytes for name, n_bytes in layout.terms if name != KV_TERM)

    def smaller_context(remaining: int) -> str:
        context = largest_context(program, max(0, remaining - others))
        return f"--context {context}" if context else "fewer --max-requests"

    return ledger.grant_all([Term(name, n_bytes) for name, n_bytes in layout.terms], smaller_context)


def compute_threads(wanted: int | None) -> int:
    """Threads of a pass: what was asked for, but never more than the CPUs that this process may use."""
    allowed = len(os.sched_getaffinity(0))
    return min(wanted or allowed, allowed, 64)


def load_kernels(isa: str) -> ctypes.CDLL:
    """The kernel library, or the NumPy twin's stand-in when it cannot be loaded and `isa` leaves the choice.

    Raises ConfigError when this CPU or this build does not have `isa`.
    """
    try:
        library = binding.load_library()
    except OSError as error:
        if isa not in ("auto", "numpy"):
            raise SipdError(f"the kernel library cannot be loaded: {error}") from error
        from sipd.kernels.reference_library import ReferenceLibrary  # noqa: PLC0415 - NumPy costs 16 MB

        if isa == "auto":
            _LOG.warning("the kernel library cannot be loaded, computing with NumPy, many times slower: %s", error)
        return cast("ctypes.CDLL", ReferenceLibrary())
    if isa != "numpy":
        try:
            binding.isa_index(library, isa)
        except ValueError as error:
            raise ConfigError("isa", str(error)) from error
    return library


def uses_twin(library: ctypes.CDLL, isa: str) -> bool:
    """Whether passes run in NumPy: asked for, or nothing else is there."""
    return isa == "numpy" or not library.sipd_isa_count()


def _twin(program: Program, layout: Layout, files: WeightFiles) -> tuple[Forward, Stream]:
    """The NumPy executor and its source, which have the methods of the native ones that the engine uses."""
    from sipd.models.reference_forward import ReferenceForward  # noqa: PLC0415 - NumPy costs 16 MB
    from sipd.weights.plain_source import PlainSource  # noqa: PLC0415

    source = PlainSource(layout.plan, files, frozenset(layout.stream.pin_offsets))
    forward = ReferenceForward(program, layout.plan, source, layout.forward)
    return cast("Forward", forward), cast("Stream", source)
