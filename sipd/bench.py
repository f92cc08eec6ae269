"""`sipd bench`: what storage gives, what prefill and decode reach, and which of storage and compute binds.

Invariant: every buffer comes out of the same ledger as the engine's, and the engine runs in process with token ids:
neither gRPC nor a tokenizer takes part.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

from sipd.bench_load import Load, Phase, stagger
from sipd.bench_report import BenchResult, bench_report, bench_text
from sipd.bench_storage import PROBE_BYTES, PROBE_S, StorageRate, measure_storage
from sipd.config import Config
from sipd.engine.build import build_engine
from sipd.engine.kv_cache import pages_for
from sipd.engine.layout import Layout
from sipd.engine.planned_model import PlannedModel, needed_bytes, open_planned_model
from sipd.errors import BudgetError, ConfigError
from sipd.memory import Ledger, open_ledger
from sipd.process_memory import keep_heap_small, read_process_memory
from sipd.progress_line import ProgressLine
from sipd.size import format_size, setting_size
from sipd.weights.probe import ProbeResult

REPETITIONS = 5
_ENOUGH_S = 60.0  # no further repetition after this: a slow card gives steady figures anyway


def run_bench(
    config: Config,
    *,
    prompt_tokens: int,
    tokens: int,
    clients: int,
    as_json: bool,
    repetitions: int = REPETITIONS,
    probe_bytes: int = PROBE_BYTES,
) -> int:
    """Prints the figures; returns 0. Raises BudgetError or ConfigError for what cannot be measured. Blocks."""
    keep_heap_small()
    model = open_planned_model(config)
    if not model.library.sipd_isa_count():
        raise ConfigError("isa", "found NumPy alone, bench wants the kernel library, which cannot be loaded here")
    ledger = open_ledger(config.budget)
    with ProgressLine("storage", None) as line:
        storage = _measure_storage(model, ledger, probe_bytes, line.advance)
    layout = model.layout(ledger.remaining())
    _check_load(model, ledger, layout, prompt_tokens=prompt_tokens, tokens=tokens, clients=clients)
    result = _measure(model, ledger, layout, storage, (prompt_tokens, tokens, clients, repetitions))
    report = bench_report(result)
    print(json.dumps(report, indent=2) if as_json else bench_text(report))
    return 0


def _measure_storage(
    model: PlannedModel, ledger: Ledger, probe_bytes: int, advance: Callable[[int], None]
) -> StorageRate | None:
    """The storage rate; None when the budget has no room for even the smallest probe."""
    try:
        return measure_storage(
            model.library,
            model.checkpoint,
            ledger,
            model.config.direct_io,
            probe_bytes=probe_bytes,
            probe_s=PROBE_S,
            advance=advance,
        )
    except BudgetError:
        return None


def _measure(
    model: PlannedModel,
    ledger: Ledger,
    layout: Layout,
    storage: StorageRate | None,
    load_shape: tuple[int, int, int, int],
) -> BenchResult:
    """Runs the engine: a cold first prefill, then prefill and decode phases by turns."""
    prompt_tokens, tokens, clients, repetitions = load_shape
    began = time.monotonic()
    engine = build_engine(model.config, model.checkpoint, ledger)
    load_s = time.monotonic() - began
    try:
        load = Load(engine, ledger, prompt_tokens=prompt_tokens, n_clients=clients)
        _show("first prefill")
        first_s = load.first_prefill()
        prefills: list[Phase] = []
        decodes: list[Phase] = []
        while len(decodes) < repetitions and (not decodes or time.monotonic() - began < _ENOUGH_S):
            _show(f"repetition {len(decodes) + 1} of at most {repetitions}")
            prefills.append(load.prefill())
            decodes.append(load.decode(tokens))
        _show("")
        status = engine.status()
        return BenchResult(
            model=model,
            layout=layout,
            storage=storage,
            isa=engine.isa,
            uses_direct_io=engine.uses_direct_io,
            start_probe=ProbeResult(status.probe_rates, status.n_readers, status.read_size),
            prompt_tokens=prompt_tokens,
            tokens=tokens,
            n_clients=clients,
            load_s=load_s,
            cold_first_token_s=load_s + first_s,
            prefills=tuple(prefills),
            decodes=tuple(decodes),
            ledger=ledger,
            peak_anonymous_bytes=ledger.sample_peak(),
            memory=read_process_memory(),
        )
    finally:
        engine.stop()


def _check_load(
    model: PlannedModel, ledger: Ledger, layout: Layout, *, prompt_tokens: int, tokens: int, clients: int
) -> None:
    """Raises before anything is loaded when the wanted load cannot run at once under the budget."""
    if needed_bytes(layout) > ledger.remaining():
        nearest = model.nearest_budget(ledger.base_bytes, lambda _ledger: None)
        raise BudgetError(
            f"budget of {format_size(ledger.limit_bytes)} ({ledger.source}) cannot hold one request",
            f"wanted --budget {setting_size(nearest)} or more",
        )
    most = min(model.config.max_requests, layout.forward.max_rows)
    if clients > most:
        raise ConfigError("clients", f"found {clients}, passes are shared by at most {most}: --max-requests")
    more = tokens + stagger(layout.forward.max_rows, prompt_tokens, clients)
    wanted = prompt_tokens + more
    if wanted > layout.context_tokens:
        raise ConfigError(
            "prompt_tokens",
            f"{prompt_tokens} and {more} more exceed the context of {layout.context_tokens} tokens: "
            "wanted fewer, a larger --context or a larger --budget",
        )
    n_pages = pages_for(wanted - 1)
    if clients * n_pages > layout.forward.n_pages:
        raise ConfigError(
            "clients",
            f"found {clients}, the KV cache of this budget holds {layout.forward.n_pages // n_pages} requests of "
            f"{wanted} tokens: wanted fewer, or a larger --budget",
        )


def _show(text: str) -> None:
    """Shows what is being measured, on a terminal only; an empty text erases it."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{text}\x1b[K")
        sys.stderr.flush()
