"""sipd's side: builds the engine in process, prefills, decodes, prints one JSON object with the peer's keys."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from sipd.bench_load import Load
from sipd.config import Config
from sipd.engine.build import build_engine
from sipd.memory import open_ledger
from sipd.process_memory import keep_heap_small
from sipd.weights.checkpoint import open_checkpoint


def main() -> None:
    """Measures as the arguments say; the budget is the cgroup's limit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--started", type=float, required=True, help="time.monotonic() at the start of the process")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--prompt-lengths", required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--repetitions", type=int, default=1)
    arguments = parser.parse_args()
    lengths = [int(text) for text in arguments.prompt_lengths.split(",")]
    keep_heap_small()
    context = max(lengths) + arguments.tokens + 8  # the peer gets no more either
    config = Config(model=arguments.model, threads=arguments.threads, context=context, max_requests=1)
    ledger = open_ledger(config.budget)
    engine = build_engine(config, open_checkpoint(arguments.model), ledger)
    loaded = time.monotonic()
    try:
        loads = {length: Load(engine, ledger, prompt_tokens=length, n_clients=1) for length in lengths}
        first_s = loads[lengths[0]].first_prefill()
        prefill: dict[str, list[float]] = {str(length): [] for length in lengths}
        for _ in range(arguments.repetitions if arguments.repetitions > 1 else 0):
            for length, load in loads.items():
                prefill[str(length)].append(load.prefill().tokens_per_s)
        decode = loads[lengths[0]].decode(arguments.tokens)
        counts = decode.counts
        status = engine.status()
        report = {
            "load_s": loaded - arguments.started,
            "first_token_s": loaded - arguments.started + first_s,
            "prefill_tokens_per_s": prefill,
            "decode_tokens_per_s": decode.tokens_per_s,
            "device_bytes_per_token": (counts.kernel_read_bytes or 0) / max(1, counts.n_passes),
            "anonymous_bytes": ledger.sample_peak(),
            "budget_bytes": ledger.limit_bytes,
            "streamed_bytes_per_token": counts.streamed_bytes / max(1, counts.n_passes),
            "storage_wait_s_per_token": counts.storage_wait_s / max(1, counts.n_passes),
            "compute_s_per_token": counts.compute_s / max(1, counts.n_passes),
            "pinned_bytes": status.pinned_bytes,
            "isa": engine.isa,
        }
    finally:
        engine.stop()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
