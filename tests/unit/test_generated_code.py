"""The committed code of proto/ is what the pinned generator writes, and both copies live in one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("sipd/v1", "clients/python/src/sipd_client/v1")


def files(root: Path) -> dict[str, str]:
    """Returns the text of every generated file below `root`."""
    return {
        str(path.relative_to(root)): path.read_text(encoding="utf-8")
        for folder in FOLDERS
        for path in (root / folder).iterdir()
        if path.suffix in {".py", ".pyi"}
    }


def test_the_committed_code_is_what_the_pinned_generator_writes(tmp_path: Path) -> None:
    done = subprocess.run([ROOT / "scripts/generate", tmp_path], capture_output=True, text=True, check=False)
    if done.returncode and "pip" in done.stderr:
        pytest.skip(f"grpcio-tools 1.67.1 cannot be installed: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    assert files(ROOT) == files(tmp_path)


@pytest.mark.parametrize("order", [("sipd.v1", "sipd_client.v1"), ("sipd_client.v1", "sipd.v1")])
def test_daemon_and_client_code_live_in_one_process(order: tuple[str, str]) -> None:
    program = "\n".join(
        f"import {package}.{name}_pb2_grpc" for package in order for name in ("generation", "model", "status")
    )
    paths = [str(ROOT), str(ROOT / "clients/python/src")]
    program = f"import sys; sys.path[:0] = {paths!r}\n{program}"
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)
