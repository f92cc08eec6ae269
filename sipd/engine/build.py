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
from sipd.engine.executor import Executor
from sipd.engine.kv_cache import PagePool
from sipd.engine.layout import KV_TERM, Divider, Layout, largest_context
from sipd.engine.loop import Engine
from sipd.engine.sampler import Sampler
from sipd.errors import ConfigError, SipdError
from sipd.kernels import binding
from sipd.memory import Ledger, Term
from sipd.models.forward import Forward, page_bytes
from sipd.models.program import Program
from sipd.models.registry import build_program
from sipd.models.small_tensors import read_f32
from sipd.weights.probe import probe_readers
from sipd.weights.reader import WeightFiles
from sipd.weights.stream import Stream
from sipd.weights.tensor_table import Checkpoint

_LOG = logging.getLogger("sipd.engine")


def build_engine(config: Config, checkpoint: Checkpoint, ledger: Ledger) -> Engine:
    """A running engine; raises ModelError, BudgetError, ConfigError or StorageFault. Reads begin at once."""
    library = load_kernels(config.isa)
    files = WeightFiles(checkpoint.files, checkpoint.file_sizes, direct=config.direct_io)
    stream: Stream | None = None
    try:
        program = build_program(checkpoint, lambda tensor: list(read_f32(library, files, tensor)))
        layout = divide_budget(library, program, config, ledger.remaining())
        grant_layout(layout, program, ledger)
        if uses_twin(library, config.isa):
            forward, stream = _twin(program, layout, files)
        else:
            shape = layout.stream
            if config.readers is None and layout.streamed_bytes > 0 and files.uses_direct_io:
                shape = replace(shape, n_readers=_probed_readers(library, layout, files))
            stream = Stream(library, layout.plan, files, shape, drop_cache=layout.streamed_bytes > 0)
            forward = Forward(library, program, layout.plan, stream, files, layout.forward, isa=config.isa)
    except BaseException:
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
    )
    return Engine(
        executor,
        Sampler(library, program.hyperparameters.vocab_size),
        PagePool(layout.forward.n_pages, page_bytes(program)),
        context_tokens=layout.context_tokens,
        max_active=layout.forward.max_logit_rows,
        max_queued=config.max_queued,
    )


def _probed_readers(library: ctypes.CDLL, layout: Layout, files: WeightFiles) -> int:
    """Reads in flight that this storage wants; what was measured goes to the log."""
    readers, rates = probe_readers(library, layout.plan, files, layout.stream)
    measured = ", ".join(f"{depth} in flight {rate / 1e6:.0f} MB/s" for depth, rate in rates.items())
    _LOG.info("storage probe: %s; reading with %d", measured or "no answer", readers)
    return readers


def divide_budget(library: ctypes.CDLL, program: Program, config: Config, available: int) -> Layout:
    """The layout of `available` bytes."""
    return Divider(library, program, config, n_threads=compute_threads(config.threads), available=available).divide()


def grant_layout(layout: Layout, program: Program, ledger: Ledger) -> None:
    """Asks the ledger for every part at once; raises BudgetError naming the largest term and what would fit."""
    others = sum(n_bytes for name, n_bytes in layout.terms if name != KV_TERM)

    def smaller_context(remaining: int) -> str:
        context = largest_context(program, max(0, remaining - others))
        return f"--context {context}" if context else "fewer --max-requests"

    ledger.grant_all([Term(name, n_bytes) for name, n_bytes in layout.terms], smaller_context)


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
