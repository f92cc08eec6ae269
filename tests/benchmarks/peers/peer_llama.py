"""The peer's side: loads a model in llama.cpp, prefills, decodes, prints one JSON object. Imports nothing of sipd.

Run by the peer's own Python; measurement.py reads what is printed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import time
from pathlib import Path
from types import ModuleType
from typing import Any


def main() -> None:
    """Measures as the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--started", type=float, required=True, help="time.monotonic() at the start of the process")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--prompt-lengths", required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--no-repack", action="store_true", help="keep the weights in the mapped file alone")
    arguments = parser.parse_args()
    lengths = [int(text) for text in arguments.prompt_lengths.split(",")]

    llama_cpp = importlib.import_module("llama_cpp")  # only the peer's Python has it
    if arguments.no_repack:
        keep_mapped(importlib.import_module("llama_cpp.llama_cpp"))
    longest = max(lengths)
    model: Any = llama_cpp.Llama(
        arguments.model,
        n_ctx=longest + arguments.tokens + 8,
        n_batch=max(longest, 32),
        n_ubatch=max(longest, 32),
        n_threads=arguments.threads,
        n_threads_batch=arguments.threads,
        verbose=False,
    )
    generator = random.Random(20)
    loaded = time.monotonic()

    def evaluate(n_tokens: int) -> float:
        ids = [generator.randrange(model.n_vocab()) for _ in range(n_tokens)]
        began = time.monotonic()
        model.eval(ids)
        llama_cpp.llama_get_logits(model.ctx)  # waits for what is still under way
        return time.monotonic() - began

    model.reset()
    evaluate(lengths[0])
    first_token_s = time.monotonic() - arguments.started
    prefill: dict[str, list[float]] = {str(length): [] for length in lengths}
    for _ in range(arguments.repetitions if arguments.repetitions > 1 else 0):
        for length in lengths:
            model.reset()
            prefill[str(length)].append(length / evaluate(length))
    if arguments.repetitions > 1:
        model.reset()
        evaluate(lengths[0])  # so that decode goes on from the same position as sipd's
    before = read_bytes()
    began = time.monotonic()
    for _ in range(arguments.tokens - 1):
        evaluate(1)
    decode_s = time.monotonic() - began
    n_decoded = arguments.tokens - 1
    report = {
        "load_s": loaded - arguments.started,
        "first_token_s": first_token_s,
        "prefill_tokens_per_s": prefill,
        "decode_tokens_per_s": n_decoded / decode_s,
        "device_bytes_per_token": (read_bytes() - before) / n_decoded,
        "anonymous_bytes": status_bytes("RssAnon"),
    }
    print(json.dumps(report))


def keep_mapped(bindings: ModuleType) -> None:
    """Switches repacking off for models made from now on; llama_cpp.Llama has no argument for it."""
    defaults = bindings.llama_model_default_params

    def without_repacking() -> object:
        parameters = defaults()
        parameters.use_extra_bufts = False
        return parameters

    vars(bindings)["llama_model_default_params"] = without_repacking


def read_bytes() -> int:
    """Bytes that the kernel fetched from storage for this process."""
    text = Path("/proc/self/io").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("read_bytes:"))


def status_bytes(name: str) -> int:
    """One figure of /proc/self/status in bytes."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(f"{name}:"))


main()
