"""Builds the fuzz target of the C unpackers: with libFuzzer where clang brings it, else with its own driver.

Invariant: AddressSanitizer and UBSan watch, and the first fault ends the program.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.hostile.test_sanitizers import FLAGS, ISA_FLAGS, ISAS, KERNELS, OPERATIONS

__all__ = ["ISAS", "Program", "build"]

HERE = Path(__file__).parent
BUILD_S = 600.0  # a minute of one core, more where the machine is busy


@dataclass(frozen=True, slots=True)
class Program:
    """A built target."""

    path: Path
    is_libfuzzer: bool

    def command(self, seconds: int, found: Path, artifacts: Path) -> list[str]:
        """Returns the command that fuzzes; libFuzzer keeps inputs that reach new code in the folder `found`."""
        if not self.is_libfuzzer:
            return [str(self.path), str(seconds), "1"]
        limits = [f"-max_total_time={seconds}", "-max_len=8192", "-timeout=20"]
        return [str(self.path), *limits, f"-artifact_prefix={artifacts}/", str(found)]

    def seeds(self, folder: Path) -> list[str]:
        """Returns the arguments that name the seeds."""
        return [str(folder)] if self.is_libfuzzer else [str(path) for path in sorted(folder.iterdir())]


def build(isa: str, folder: Path) -> Program | None:
    """Returns the target for one instruction set, built in `folder`; None where no compiler has the sanitizers."""
    for compiler, sanitizers in (("clang", "fuzzer,address,undefined"), ("cc", "address,undefined")):
        found = shutil.which(compiler)
        if found and _can_link(found, sanitizers, folder):
            return _build(found, sanitizers, isa, folder / f"unpack-{isa}")
    return None


def _can_link(compiler: str, sanitizers: str, folder: Path) -> bool:
    probe = folder / "probe.c"
    main = "int LLVMFuzzerTestOneInput(const unsigned char *data, unsigned long n) { return data && n ? 0 : 0; }\n"
    probe.write_text(main if "fuzzer" in sanitizers else "int main(void) { return 0; }\n")
    command: list[str | Path] = [compiler, f"-fsanitize={sanitizers}", probe, "-o", folder / "probe"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _build(compiler: str, sanitizers: str, isa: str, path: Path) -> Program:
    is_libfuzzer = "fuzzer" in sanitizers
    sources = [HERE / "fuzz_unpack.c", *(KERNELS / f"{name}.c" for name in ("dequantize", *OPERATIONS))]
    if not is_libfuzzer:
        sources.append(HERE / "fuzz_main.c")
    flags = [*FLAGS, *ISA_FLAGS[isa], "-O1", f"-DSIPD_SUFFIX=_{isa}", f"-DOPERATIONS=sipd_ops_{isa}", f"-I{KERNELS}"]
    flags += [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=undefined", "-w"]
    subprocess.run([compiler, *flags, *sources, "-o", path, "-lm"], check=True, timeout=BUILD_S)
    return Program(path, is_libfuzzer)
