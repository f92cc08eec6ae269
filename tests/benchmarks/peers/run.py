"""Runs sipd and llama.cpp A B A B on the same file, threads and limit, and prints the ratio table.

`python -m tests.benchmarks.peers.run [--case NAME]...` on an idle Linux machine; limited cases need root. The peer is
installed by itself, the models are made or pulled. Invariant: every measured program is a process of its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.benchmarks.peers.board_disk import on_board_disk
from tests.benchmarks.peers.cases import CASES, CASES_BY_NAME, Case
from tests.benchmarks.peers.measurement import DiskRates, Settings, disk_rates, run_peer, run_sipd
from tests.benchmarks.peers.peer_venv import install_peer
from tests.benchmarks.peers.ratio_table import HEADER, Pair, rows
from tests.benchmarks.peers.synthetic import SYNTHETIC, Shape, write_model

_PAIRS = 5


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the cases that were chosen; returns 0."""
    arguments = _parser().parse_args(argv)
    cases = [CASES_BY_NAME[name] for name in arguments.case] or list(CASES)
    folder: Path = arguments.work
    folder.mkdir(parents=True, exist_ok=True)
    settings = Settings(
        peer_python=arguments.peer_python or install_peer(folder / "venv"),
        threads=arguments.threads,
        tokens=arguments.tokens,
        repetitions=arguments.repetitions,
        timeout_s=arguments.timeout,
    )
    print(HEADER, flush=True)
    for case in cases:
        with _model(case, folder, arguments.smollm2) as model:
            pairs = [_pair(case, model, settings, number) for number in range(arguments.pairs)]
        print("\n".join(rows(case, pairs)), flush=True)
    print(
        "\nllama.cpp repacks Q4_0 at load in the resident cases (its default); in the limited ones it keeps its mmap."
    )
    return 0


def _pair(case: Case, model: Path, settings: Settings, number: int) -> Pair:
    sys.stderr.write(f"{case.name}: pair {number + 1}\n")
    rates = disk_rates(case, model) if case.is_limited else DiskRates()
    return Pair(run_sipd(case, model, settings), run_peer(case, model, settings), rates)


@contextmanager
def _model(case: Case, folder: Path, smollm2: Path | None) -> Iterator[Path]:
    """Yields the case's model file, on the disk that the case asks for."""
    if case.model in SYNTHETIC:
        model = write_model(folder / f"{case.model}.gguf", SYNTHETIC[case.model], Shape())
    else:
        model = smollm2 or _pull_smollm2()
    if case.read_ahead_kib is None:
        yield model
        return
    with (
        tempfile.TemporaryDirectory(dir=folder) as place,
        on_board_disk(model, Path(place), case.read_ahead_kib) as copy,
    ):
        yield copy


def _pull_smollm2() -> Path:
    done = subprocess.run([sys.executable, "-m", "sipd", "pull"], check=True, stdout=subprocess.PIPE, text=True)
    return Path(done.stdout.strip())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.peers.run", description=__doc__)
    add = parser.add_argument
    add("--case", action="append", default=[], choices=list(CASES_BY_NAME), help="repeatable (default: all)")
    add("--pairs", type=int, default=_PAIRS, help=f"A B pairs a case (default: {_PAIRS})")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of both (default: the CPUs allowed)")
    add("--tokens", type=int, help="tokens to decode (default: by case)")
    add("--repetitions", type=int, default=3, help="prefills of a resident run (default: 3)")
    add("--timeout", type=float, default=900.0, help="seconds a run may take (default: 900)")
    cache = Path.home() / ".cache" / "sipd" / "peers"
    add("--work", type=Path, default=cache, help="folder of the peer and the synthetic models (default: %(default)s)")
    add("--peer-python", type=Path, help="a Python that has llama-cpp-python already")
    add("--smollm2", type=Path, help="the SmolLM2 GGUF (default: sipd pull)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
