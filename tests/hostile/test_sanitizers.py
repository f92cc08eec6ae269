"""The native code under sanitizers: races of the stream and the pool, and out-of-bounds reads of the unpackers."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from sipd.kernels import binding

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "sipd" / "kernels"
DEADLINE_S = 300.0
FLAGS = ["-std=gnu11", "-g", "-ffp-contract=off", "-fno-math-errno", "-fno-omit-frame-pointer", "-pthread"]
ISA_FLAGS = {
    "portable": [],
    "avx2": ["-DSIPD_AVX2", "-mavx2", "-mf16c"],
    "avx512vnni": [
        *("-DSIPD_AVX512", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mf16c"),
    ],
    "neon": ["-DSIPD_NEON", "-march=armv8-a"],
    "neon_dotprod": ["-DSIPD_NEON", "-DSIPD_DOTPROD", "-march=armv8.2-a+dotprod"],
}
OPERATIONS = ["matmul", "repack", "quantize", "rms_norm", "silu_mul", "rope", "store_kv", "attention", "ops"]
DRIVEN = [
    HERE / "race_driver.c",
    *(KERNELS / f"{name}.c" for name in ("clock", "mapping", "read_span", "stream", "stream_pass", "pool")),
]
ISAS = [name for name in binding.isa_names(binding.load_library()) if name in ISA_FLAGS]


def compile_with(sanitizer: str, target: Path, sources: Sequence[Path], flags: Sequence[str] = ()) -> Path:
    """Builds a program; skips where the compiler or the sanitizer's runtime is not there."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    probe = target.with_name("probe.c")
    probe.write_text("int main(void) { return 0; }\n")
    command: list[str | Path] = [compiler, f"-fsanitize={sanitizer}", probe, "-o", target]
    built = subprocess.run(command, capture_output=True, check=False)
    if built.returncode or subprocess.run([target], capture_output=True, check=False).returncode:
        pytest.skip(f"-fsanitize={sanitizer} does not work here")
    command = [compiler, *FLAGS, f"-fsanitize={sanitizer}", f"-I{KERNELS}", *flags, *sources, "-o", target, "-lm"]
    subprocess.run(command, check=True, timeout=DEADLINE_S)
    return target


def run_clean(program: Path, *arguments: str) -> None:
    """Runs a program that must say "equal" and nothing else."""
    environment = os.environ | {
        "TSAN_OPTIONS": "halt_on_error=1",
        "ASAN_OPTIONS": "detect_leaks=1",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    }
    done = subprocess.run(
        [program, *arguments], env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "equal\n", "")


def test_the_stream_and_the_pool_have_no_data_race(tmp_path: Path) -> None:
    program = compile_with("thread", tmp_path / "race", DRIVEN, ["-O1"])
    run_clean(program, str(tmp_path / "weights.bin"))


def test_the_stream_and_the_pool_keep_within_their_memory(tmp_path: Path) -> None:
    program = compile_with("address,undefined", tmp_path / "bounds", DRIVEN, ["-O1"])
    run_clean(program, str(tmp_path / "weights.bin"))


@pytest.mark.slow
@pytest.mark.parametrize("isa", ISAS)
def test_no_unpacker_reads_beyond_its_blocks_or_leaves_defined_behaviour(tmp_path: Path, isa: str) -> None:
    if platform.machine() not in {"x86_64", "aarch64"}:
        pytest.skip("flags are known for x86-64 and ARM64 only")
    sources = [HERE / "unpack_driver.c", KERNELS / "dequantize.c", *(KERNELS / f"{name}.c" for name in OPERATIONS)]
    flags = ["-O1", f"-DSIPD_SUFFIX=_{isa}", f"-DOPERATIONS=sipd_ops_{isa}", *ISA_FLAGS[isa]]
    program = compile_with("address,undefined", tmp_path / isa, sources, flags)
    run_clean(program, "3")
