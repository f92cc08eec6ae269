"""Builds the kernel library: every operation once per instruction set, everything else once, one shared object."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

KERNELS = Path("sipd/kernels")
# The first one takes most of the time: it starts first, so that no core idles at the end.
OPERATIONS = ["matmul", "repack", "quantize", "rms_norm", "silu_mul", "rope", "store_kv", "attention", "ops"]
COMMON = [
    *("clock", "mapping", "read_span", "stream", "stream_pass", "stream_repin", "pool"),
    *("embed", "pass", "pass_matmul", "pass_attention"),
    *("dequantize", "rope_angles", "sample", "isa"),
]
FLAGS = [
    *("-std=gnu11", "-O3", "-ffp-contract=off", "-fno-math-errno"),
    *("-Wall", "-Wextra", "-pthread", "-g0"),
]
X86 = {
    "avx512vnni": ["-DSIPD_AVX512", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mf16c"],
    "avx2": ["-DSIPD_AVX2", "-mavx2", "-mf16c"],
}
ARM = {
    "neon_i8mm": ["-DSIPD_NEON", "-DSIPD_DOTPROD", "-DSIPD_I8MM", "-march=armv8.2-a+dotprod+i8mm"],
    "neon_dotprod": ["-DSIPD_NEON", "-DSIPD_DOTPROD", "-march=armv8.2-a+dotprod"],
    "neon": ["-DSIPD_NEON", "-march=armv8-a"],
}
PORTABLE = {"portable": ["-O2"]}


@dataclass(frozen=True)
class Unit:
    """One object file: a source, the folder below the build folder that it goes to, and its flags."""

    source: str
    folder: str
    flags: Sequence[str]


def units_for(machine: str) -> list[Unit]:
    """Returns what the library consists of on `machine`, the slowest to compile first."""
    isas = {**{"x86_64": X86, "aarch64": ARM}.get(machine, {}), **PORTABLE}
    units = [
        Unit(str(KERNELS / f"{name}.c"), isa, [*FLAGS, f"-DSIPD_SUFFIX=_{isa}", *flags])
        for name in OPERATIONS
        for isa, flags in isas.items()
    ]
    return units + [Unit(str(KERNELS / f"{name}.c"), "common", FLAGS) for name in COMMON]


class BuildKernels(build_ext):
    """Compiles with flags per object, which a plain Extension cannot say, and on every CPU that it may use."""

    def build_extension(self, ext: Extension) -> None:
        """Compile and link `ext` into the package directory."""
        units = units_for((self.plat_name or platform.machine()).rsplit("-", 1)[-1])
        with ThreadPoolExecutor(self.parallel or len(os.sched_getaffinity(0))) as pool:
            objects = [path for paths in pool.map(self._compile, units) for path in paths]
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        self.compiler.link_shared_object(objects, str(target), extra_preargs=["-pthread"], libraries=["m"])

    def _compile(self, unit: Unit) -> list[str]:
        folder = str(Path(self.build_temp) / unit.folder)
        objects: list[str] = self.compiler.compile([unit.source], output_dir=folder, extra_preargs=list(unit.flags))
        return objects

    def get_ext_filename(self, fullname: str) -> str:
        """A plain shared object: it is loaded by ctypes, not imported."""
        return str(Path(*fullname.split("."))) + ".so"


class KernelWheel(bdist_wheel):
    """The library knows nothing of Python: one wheel per platform serves every version."""

    def get_tag(self) -> tuple[str, str, str]:
        """Returns the wheel's tag: any Python 3, no ABI, this platform."""
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[
        Extension(
            "sipd.kernels._native",
            sources=[str(KERNELS / f"{name}.c") for name in [*COMMON, *OPERATIONS]],
            depends=[str(path) for path in KERNELS.glob("*.h")],
        )
    ],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": KernelWheel},
)
