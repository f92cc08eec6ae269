"""sipd's bytes beside SipLLM's published table: same prompt lengths, four generated tokens, same accounting.

`python -m tests.benchmarks.peers.sipllm_table [--work FOLDER] [--smollm2 FILE]`. What counts is what the readers are
asked for: weight bytes of every pass, prefill and decode, with nothing pinned. Invariant: the figures of sipd are
counted by running the engine; only SipLLM's are literals.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

from sipd.bench_load import prompt_ids
from sipd.config import Config
from sipd.engine.build import build_engine
from sipd.engine.request import Outcome, Request, SampledToken
from sipd.engine.sampling import SamplingOptions
from sipd.memory import open_ledger
from sipd.weights.checkpoint import open_checkpoint
from tests.benchmarks.peers.synthetic import SYNTHETIC, Shape, write_model

TOKENS = 4
_ANSWER_S = 900.0
HEADER = (
    "| model | prompt | SipLLM token by token, MB | SipLLM one pass, MB | ratio | sipd token by token, MB "
    "| sipd one pass, MB | ratio | sipd passes |\n|---|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True, slots=True)
class Published:
    """One line of SipLLM's table: MB for a prompt fed token by token, and in one pass."""

    model: str
    prompt_tokens: int
    stepwise_mb: int
    batched_mb: int


PUBLISHED = (Published("smollm2", 122, 14_456, 790), Published("tinyllama-q4_0", 50, 31_128, 2_882))


@dataclass(frozen=True, slots=True)
class Counted:
    """What one request of sipd streamed."""

    n_passes: int
    streamed_bytes: int


class _Sink:
    """Waits for the end."""

    def __init__(self) -> None:
        self.outcomes: Queue[Outcome] = Queue()

    def started(self) -> None:
        """Nothing to do."""

    def token(self, _token: SampledToken) -> bool:
        """Never asks for an end."""
        return False

    def finished(self, outcome: Outcome) -> None:
        """Keeps the outcome for whoever waits."""
        self.outcomes.put(outcome)


def count_bytes(model: Path, prompt_tokens: int, *, rows_per_pass: int | None = None) -> Counted:
    """Runs one request of TOKENS tokens with nothing pinned; `rows_per_pass` 1 feeds the prompt token by token."""
    config = Config(
        model=model,
        pin=False,
        context=prompt_tokens + TOKENS + 1,
        max_requests=1,
        rows_per_pass=rows_per_pass,
        prefix_cache=False,
        speculation=False,
    )
    engine = build_engine(config, open_checkpoint(model), open_ledger(None))
    try:
        sink = _Sink()
        prompt = prompt_ids(1, prompt_tokens, engine.vocab_size)
        engine.submit(Request("table", prompt, TOKENS, SamplingOptions(temperature=0.0), sink))
        outcome = sink.outcomes.get(timeout=_ANSWER_S)
        if outcome.error is not None:
            raise outcome.error
        usage = outcome.usage
        return Counted(usage.passes, usage.streamed_bytes)
    finally:
        engine.stop()


def row(published: Published, stepwise: Counted, batched: Counted) -> str:
    """One line of the table."""
    cells = [published.model, str(published.prompt_tokens)]
    cells += _pair(published.stepwise_mb * 1e6, published.batched_mb * 1e6)
    cells += _pair(stepwise.streamed_bytes, batched.streamed_bytes)
    cells.append(f"{stepwise.n_passes}, {batched.n_passes}")
    return f"| {' | '.join(cells)} |"


def _pair(before: float, after: float) -> list[str]:
    return [f"{before / 1e6:,.0f}", f"{after / 1e6:,.0f}", f"{before / after:.1f}"]


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; returns 0. Takes as long as streaming some 180 passes does."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.peers.sipllm_table", description=__doc__)
    cache = Path.home() / ".cache" / "sipd" / "peers"
    parser.add_argument("--work", type=Path, default=cache, help="folder of the synthetic model (default: %(default)s)")
    parser.add_argument("--smollm2", type=Path, required=True, help="the SmolLM2 GGUF (sipd pull prints its path)")
    arguments = parser.parse_args(argv)
    arguments.work.mkdir(parents=True, exist_ok=True)
    print(HEADER, flush=True)
    for published in PUBLISHED:
        model = arguments.smollm2
        if published.model in SYNTHETIC:
            model = write_model(arguments.work / f"{published.model}.gguf", SYNTHETIC[published.model], Shape())
        stepwise = count_bytes(model, published.prompt_tokens, rows_per_pass=1)
        print(row(published, stepwise, count_bytes(model, published.prompt_tokens)), flush=True)
    print(
        f"\nWeight bytes of the prefill and of {TOKENS} generated tokens. SipLLM's are 128 to 7 and 54 to 5 sweeps\n"
        "over its blocks; ours hold the head once a generated token and the embedding rows used besides."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
