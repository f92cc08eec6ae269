"""The library that lets reads fail, for programs that are started with it preloaded."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def compiled_shim(folder: Path) -> Path:
    """Returns pread_shim.c, compiled into `folder`; skips where there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    target = folder / "pread_shim.so"
    source = Path(__file__).with_name("pread_shim.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-Wall", "-o", target, source, "-ldl"], check=True)
    return target
