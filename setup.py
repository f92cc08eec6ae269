"""Builds the kernel library: every operation once per instruction set, everything else once, one shared object."""

from __future__ import annotations

import platform
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNELS = Path("sipd/kernels")
OPERATIONS = ["matmul", "repack", "quantize", "rms_norm", "silu_mul", "rope", "store_kv", "attention", "ops"]
COMMON = ["pool", "stream", "embed", "pass", "pass_matmul", "pass_attention", "dequantize", "rope_angles", "sample", "isa"]
FLAGS = ["-std=gnu11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=default", "-Wall", "-Wextra", "-pthread", "-g0"]
X86 = {
    "avx512vnni": ["-DSIPD_AVX512", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mf16c"],
    "avx2": ["-DSIPD_AVX2", "-mavx2", "-mf16c"],
}
ARM = {
    "neon_dotprod": ["-DSIPD_NEON", "-DSIPD_DOTPROD", "-march=armv8.2-a+dotprod"],
    "neon": ["-DSIPD_NEON", "-march=armv8-a"],
}
PORTABLE = {"portable": ["-O2"]}


class BuildKernels(build_ext):
    """Compiles with flags per object, which a plain Extension cannot say."""

    def build_extension(self, ext: Extension) -> None:
        """Compile and link `ext` into the package directory."""
        machine = (self.plat_name or platform.machine()).rsplit("-", 1)[-1]
        isas = {**({"x86_64": X86, "aarch64": ARM}.get(machine, {})), **PORTABLE}
        objects = self.compiler.compile(
            [str(KERNELS / f"{name}.c") for name in COMMON], output_dir=self.build_temp, extra_preargs=FLAGS
        )
        for isa, flags in isas.items():
            objects += self.compiler.compile(
                [str(KERNELS / f"{name}.c") for name in OPERATIONS],
                output_dir=str(Path(self.build_temp) / isa),
                extra_preargs=[*FLAGS, f"-DSIPD_SUFFIX=_{isa}", *flags],
            )
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        self.compiler.link_shared_object(objects, str(target), extra_preargs=["-pthread"], libraries=["m"])

    def get_ext_filename(self, fullname: str) -> str:
        """A plain shared object: it is loaded by ctypes, not imported."""
        return str(Path(*fullname.split("."))) + ".so"


setup(
    ext_modules=[
        Extension(
            "sipd.kernels._native",
            sources=[str(KERNELS / f"{name}.c") for name in [*COMMON, *OPERATIONS]],
            depends=[str(path) for path in KERNELS.glob("*.h")],
        )
    ],
    cmdclass={"build_ext": BuildKernels},
)
