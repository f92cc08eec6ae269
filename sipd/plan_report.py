"""`sipd plan`: the ledger and the bytes per pass of a model under a budget, without starting.

Invariant: nothing that is reported is allocated and no reader is started; what the daemon loads beside the model
(tokenizer, server modules) is loaded and measured here, so that a plan that fits is a daemon that starts.
"""

from __future__ import annotations

import importlib
import json
from typing import Any

from sipd.config import Config
from sipd.engine.layout import Layout, largest_context
from sipd.engine.planned_model import PlannedModel, Reserve, needed_bytes, open_planned_model
from sipd.errors import BudgetError
from sipd.kernels.binding import PAGE_POSITIONS
from sipd.memory import Ledger, Term, open_ledger
from sipd.process_memory import keep_heap_small, return_free_memory
from sipd.size import format_size, setting_size

# SD card, USB 2 or eMMC, USB 3 SSD, NVMe: megabytes of 10^6 bytes per second
STORAGE_RATES_MB_S = (45, 90, 400, 2000)
_SERVER_MODULES = ("asyncio", "sipd.server.daemon", "sipd.server.log_lines", "sipd.server.model_loader")
# A started server's threads and channels, measured at 1.0 MiB on x86-64
STARTED_SERVER_BYTES = 2 * 1024**2
BASE_INCLUDES = "interpreter, tokenizer and server modules as measured here, and 2 MiB for the started server"


def run_plan(config: Config, *, as_json: bool) -> int:
    """Prints the plan; returns 0. Raises BudgetError, after printing, when the budget cannot hold one request."""
    keep_heap_small()
    model = open_planned_model(config)
    reserve = load_what_the_daemon_loads(config, model)
    ledger = open_ledger(config.budget)
    ledger.base_bytes += STARTED_SERVER_BYTES
    try:
        reserve(ledger)
        model.reserve_engine(ledger)
    except BudgetError:
        layout = model.layout(0)
    else:
        layout = model.layout(ledger.remaining())
    left = ledger.limit_bytes - ledger.base_bytes - ledger.margin_bytes - ledger.granted()
    fault = None if needed_bytes(layout) <= left else refusal(model, ledger, layout, reserve)
    report = plan_report(model, ledger, layout, fault)
    print(json.dumps(report, indent=2) if as_json else plan_text(report))
    if fault is not None:
        raise fault
    return 0


def load_what_the_daemon_loads(config: Config, model: PlannedModel) -> Reserve:
    """Imports the server and builds the tokenizer; returns what has a ledger grant the daemon's own parts."""
    for name in _SERVER_MODULES:
        importlib.import_module(name)
    from sipd.server.model_loader import reserve_prompt_memory  # noqa: PLC0415 - imports grpc
    from sipd.server.model_text import read_model_text  # noqa: PLC0415

    text = read_model_text(model.checkpoint)
    return_free_memory()

    def reserve(ledger: Ledger) -> object:
        return reserve_prompt_memory(ledger, config.max_prompt_bytes), text  # the text stays alive as long as this

    return reserve


def refusal(model: PlannedModel, ledger: Ledger, layout: Layout, reserve: Reserve) -> BudgetError:
    """Returns the error of a budget that is too small: the largest term, and the settings that would fit."""
    largest = max(_terms(ledger, layout), key=lambda term: term.n_bytes)
    advice = f"wanted --budget {setting_size(model.nearest_budget(ledger.base_bytes, reserve))} or more"
    left_for_kv = ledger.remaining() - needed_bytes(layout) + layout.kv_bytes
    n_tokens = largest_context(model.program, left_for_kv) if left_for_kv > 0 else 0
    if model.config.context is not None and n_tokens > 0:
        advice += f", or --context {n_tokens}"
    return BudgetError(
        f"budget of {format_size(ledger.limit_bytes)} ({ledger.source}) cannot hold one request: largest term is "
        f"{largest.name} of {format_size(largest.n_bytes)}",
        advice,
    )


def plan_report(model: PlannedModel, ledger: Ledger, layout: Layout, fault: BudgetError | None) -> dict[str, Any]:
    """Returns the report as JSON values; docs/plan.md says what each key means."""
    terms = _terms(ledger, layout)
    h = model.program.hyperparameters
    per_pass = bytes_per_pass(model, layout)
    free = ledger.limit_bytes - sum(term.n_bytes for term in terms)
    return {
        "model": str(model.checkpoint.path),
        "architecture": h.architecture,
        "n_layers": h.n_layers,
        "file_bytes": sum(model.checkpoint.file_sizes),
        "budget_bytes": ledger.limit_bytes,
        "budget_source": ledger.source,
        "fits": fault is None,
        "refusal": None if fault is None else str(fault),
        "terms": [{"name": term.name, "bytes": term.n_bytes} for term in terms],
        "free_bytes": free,
        "base_includes": BASE_INCLUDES,
        "largest_term": max(terms, key=lambda term: term.n_bytes).name,
        "bytes_per_pass": per_pass,
        "tiles": len(layout.plan.tiles),
        "extents": len(layout.plan.extents),
        "pinned_extents": len(layout.stream.pin_offsets),
        "ring": {
            "slots": layout.stream.n_slots,
            "slot_bytes": layout.stream.slot_bytes,
            "readers": layout.stream.n_readers,
        },
        "rows_per_pass": layout.forward.max_rows,
        "requests_per_pass": min(model.config.max_requests, layout.forward.max_rows),
        "context_tokens": layout.context_tokens,
        "kv_pages": layout.forward.n_pages,
        "kv_page_tokens": PAGE_POSITIONS,
        "kv_bytes_per_token": model.page_bytes // PAGE_POSITIONS,
        "compute_threads": model.n_threads,
        "seconds_per_pass": [
            {"mb_per_s": rate, "seconds": round(per_pass["streamed"] / (rate * 1e6), 4)} for rate in STORAGE_RATES_MB_S
        ],
    }


def bytes_per_pass(model: PlannedModel, layout: Layout) -> dict[str, int]:
    """Weight bytes of one pass: blocks and head, of them pinned and streamed, and what each row adds."""
    plan = layout.plan
    has_embedding_tiles = len(plan.group_tiles) > sum(1 for _ in model.program.product_steps())
    n_bytes = [tile.n_rows * plan.matrices[tile.matrix].row_bytes for tile in plan.tiles]
    sums = [sum(n_bytes[begin:end]) for begin, end in plan.group_tiles]
    is_in_memory = has_embedding_tiles or (model.program.is_tied and layout.streamed_bytes == 0)
    return {
        "blocks": sum(sums[int(has_embedding_tiles) : -1]),
        "head": sums[-1],
        "embedding_row": 0 if is_in_memory else model.program.embedding.row_bytes,
        "total": plan.pass_bytes,
        "pinned": layout.pinned_weight_bytes,
        "streamed": layout.streamed_bytes,
    }


def plan_text(report: dict[str, Any]) -> str:
    """Returns the report for people."""
    per_pass, ring = report["bytes_per_pass"], report["ring"]
    lines = [
        f"{report['model']}: {report['architecture']}, {report['n_layers']} blocks, "
        f"{format_size(report['file_bytes'])}",
        f"memory: {format_size(report['budget_bytes'])}, set by {report['budget_source']}",
    ]
    terms = [(term["name"], term["bytes"]) for term in report["terms"]]
    last = ("free", report["free_bytes"]) if report["fits"] else ("missing", -report["free_bytes"])
    lines += [f"  {name:<17}{format_size(n_bytes):>12}  {n_bytes:>14,} B" for name, n_bytes in [*terms, last]]
    lines += [f"  process base: {report['base_includes']}", "bytes per pass:"]
    lines += [
        f"  {name.replace('_', ' '):<17}{format_size(n_bytes):>12}  {n_bytes:>14,} B"
        for name, n_bytes in per_pass.items()
    ]
    lines += [
        f"tiles {report['tiles']}, reads {report['extents']} ({report['pinned_extents']} pinned), "
        f"ring {ring['slots']} x {format_size(ring['slot_bytes'])}, readers {ring['readers']}",
        f"rows per pass {report['rows_per_pass']}, requests per pass {report['requests_per_pass']}, "
        f"context {report['context_tokens']} tokens, KV cache {format_size(report['kv_bytes_per_token'])} per token, "
        f"threads {report['compute_threads']}",
        "seconds per pass that storage allows = streamed bytes / rate:",
    ]
    lines += [f"  {each['mb_per_s']:>5} MB/s  {each['seconds']:.3f} s" for each in report["seconds_per_pass"]]
    return "\n".join(lines)


def _terms(ledger: Ledger, layout: Layout) -> list[Term]:
    return [*ledger.terms(), *(Term(name, n_bytes) for name, n_bytes in layout.terms)]
