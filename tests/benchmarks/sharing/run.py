"""Measures what shared passes, kept keys and values, and guesses bring; prints a Markdown table for each case.

`python -m tests.benchmarks.sharing.run [--case NAME]...` on an idle Linux machine as root: reads are throttled by a
cgroup and the page cache is dropped. Invariant: every measured program is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.benchmarks.sharing import churn, clients, drafting, gap, lookup, prefix
from tests.benchmarks.sharing.case import Setting
from tests.benchmarks.sharing.machine import machine_line
from tests.benchmarks.sharing.table import Table

CASES: Mapping[str, Callable[[Setting], Table]] = {
    "clients": clients.tabulate,
    "gap": gap.tabulate,
    "prefix": prefix.tabulate,
    "lookup-streaming": lookup.tabulate_streaming,
    "lookup-throttled": lookup.tabulate_throttled,
    "lookup-resident": lookup.tabulate_resident,
    "draft": drafting.tabulate_small,
    "draft-roomy": drafting.tabulate_roomy,
    "requests": churn.tabulate,
}
_PAIRED = frozenset({"draft", "draft-roomy"})


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the cases that were chosen; returns 0."""
    arguments = _parser().parse_args(argv)
    has_pair = arguments.target is not None and arguments.draft is not None
    if _PAIRED.intersection(arguments.case) and not has_pair:
        raise SystemExit("draft cases want --target FILE and --draft FILE, models of the same vocabulary")
    names = arguments.case or [name for name in CASES if name not in _PAIRED or has_pair]
    arguments.work.mkdir(parents=True, exist_ok=True)
    setting = Setting(
        work=arguments.work,
        smollm2=arguments.smollm2 or _pull_smollm2(),
        target=arguments.target,
        draft=arguments.draft,
        tokens=arguments.tokens,
        repetitions=arguments.repetitions,
    )
    machine = machine_line()
    if not arguments.json:
        print(f"{machine}\n", flush=True)
    for name in names:
        table = CASES[name](setting)
        found = {"case": name, "machine": machine} | asdict(table)
        print(json.dumps(found) if arguments.json else table.markdown(), flush=True)
    return 0


def _pull_smollm2() -> Path:
    done = subprocess.run([sys.executable, "-m", "sipd", "pull"], check=True, stdout=subprocess.PIPE, text=True)
    return Path(done.stdout.strip())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.sharing.run", description=__doc__)
    add = parser.add_argument
    add("--case", action="append", default=[], choices=list(CASES), help="repeatable (default: all that can run)")
    work = Path.home() / ".cache" / "sipd" / "sharing"
    add("--work", type=Path, default=work, help="folder of snapshots, on the models' disk (default: %(default)s)")
    add("--smollm2", type=Path, help="the SmolLM2 GGUF (default: sipd pull)")
    add("--target", type=Path, help="a large model, for the draft cases")
    add("--draft", type=Path, help="a small model of the same vocabulary")
    add("--tokens", type=int, help="tokens to decode, or requests to send (default: by case)")
    add("--repetitions", type=int, help="repetitions of each figure (default: by case)")
    add("--json", action="store_true", help="one line of JSON a table")
    return parser


if __name__ == "__main__":
    sys.exit(main())
