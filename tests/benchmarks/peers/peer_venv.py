"""The peer's own Python: llama.cpp in a virtual environment that is made once and kept."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

PEER = "llama-cpp-python==0.3.36"


def install_peer(folder: Path) -> Path:
    """Returns the Python that has the peer; building it takes a quarter of an hour on two cores, the first time."""
    python = folder / "bin" / "python"
    if python.exists() and _has_peer(python):
        return python
    sys.stderr.write(f"installing {PEER} into {folder}; this compiles llama.cpp once\n")
    venv.create(folder, with_pip=True, clear=True)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", PEER], check=True)
    return python


def _has_peer(python: Path) -> bool:
    wanted = PEER.partition("==")[2]
    code = f"import importlib.metadata as m; raise SystemExit(m.version('llama-cpp-python') != '{wanted}')"
    return subprocess.run([str(python), "-c", code], check=False, capture_output=True).returncode == 0
