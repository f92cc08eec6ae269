"""Fuzzes for a time: `tests/fuzz/run [SECONDS] [TARGET ...]`, ten seconds of each target by default.

Invariant: exit code 0 says that nothing was found. Inputs that break something or reach new code go to build/fuzz.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from tests.fuzz.bounds import limit_memory
from tests.fuzz.mutation import mutations
from tests.fuzz.native import ISAS, build
from tests.fuzz.targets import CORPUS, HERE, NAMES, load, seed_files

ROOT = HERE.parents[1]
OUT = ROOT / "build" / "fuzz"


def main(arguments: list[str]) -> int:
    """Returns the exit code: 1 when a target found something."""
    seconds = int(arguments.pop(0)) if arguments and arguments[0].isdigit() else 10
    names = arguments or [*NAMES, "unpack"]
    unknown = set(names).difference(NAMES, ["unpack"])
    if unknown:
        print(f"no target {', '.join(sorted(unknown))}; wanted {', '.join((*NAMES, 'unpack'))}", file=sys.stderr)
        return 2
    failed = []
    for name in names:
        found = OUT / name
        found.mkdir(parents=True, exist_ok=True)
        if not (_unpack(seconds, found) if name == "unpack" else _target(name, seconds, found)):
            failed.append(name)
    print(f"found something: {', '.join(failed)}, see {OUT}" if failed else "nothing found")
    return 1 if failed else 0


def _target(name: str, seconds: int, found: Path) -> bool:
    if importlib.util.find_spec("atheris") is None:
        return _mutate(name, seconds)
    options = [f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=1024", f"-artifact_prefix={OUT}/{name}-"]
    print(f"== {name}: atheris", flush=True)
    module = [sys.executable, "-m", "tests.fuzz.atheris_main", name]
    return subprocess.run([*module, *options, found, CORPUS / name], cwd=ROOT, check=False).returncode == 0


def _mutate(name: str, seconds: int) -> bool:
    """Runs mutated seeds, other ones each time; returns whether all kept the promises."""
    limit = resource.getrlimit(resource.RLIMIT_AS)
    limit_memory()
    target, number = load(name), time.time_ns()
    end = time.monotonic() + seconds
    n_runs = 0
    print(f"== {name}: no atheris, mutating the seeds at random with number {number}", flush=True)
    for content in mutations([path.read_bytes() for path in seed_files(name)], target.dictionary, number):
        if time.monotonic() > end:
            break
        try:
            target.run(content)
        except Exception:  # noqa: BLE001 - a finding, whatever it is
            path = OUT / f"{name}-crash"
            path.write_bytes(content)
            print(f"{name}: found {path} after {n_runs} runs", file=sys.stderr)
            sys.excepthook(*sys.exc_info())
            return False
        n_runs += 1
    resource.setrlimit(resource.RLIMIT_AS, limit)  # the sanitizers of the next target want more
    print(f"{name}: {n_runs} runs")
    return True


def _unpack(seconds: int, found: Path) -> bool:
    is_sound = True
    for isa in ISAS:
        program = build(isa, OUT)
        if program is None:
            print("== unpack: no C compiler with AddressSanitizer here, skipped")
            break
        print(f"== unpack: {isa}, {'libFuzzer' if program.is_libfuzzer else 'its own driver'}", flush=True)
        command = [*program.command(seconds, found, OUT), *program.seeds(CORPUS / "unpack")]
        environment = os.environ | {"ASAN_OPTIONS": "abort_on_error=1"}
        is_sound &= subprocess.run(command, cwd=OUT, env=environment, check=False).returncode == 0
    return is_sound


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
