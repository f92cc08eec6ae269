"""The cross-built wheel computes what the committed ids say, on boards with and without dot products.

SIPD_WHEELS names the folder that scripts/wheels filled, SIPD_ARM64_RUN what tests/board/test_expected_ids.py describes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.board.test_expected_ids import BOARDS, EXPECTED, N_QUICK, ROOT


@pytest.fixture(scope="module")
def wheel_folder(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Path:
    """A folder with what the wheel holds, tests/board and the model."""
    for name in ("SIPD_WHEELS", "SIPD_ARM64_RUN"):
        if name not in os.environ:
            pytest.skip(f"{name} is not set")
    (wheel,) = Path(os.environ["SIPD_WHEELS"]).glob("sipd-*_aarch64.whl")
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(smollm2, folder / "model.gguf")
    return folder


@pytest.mark.board
@pytest.mark.parametrize("cpu", BOARDS)
def test_the_wheel_for_arm64_gives_the_committed_ids(cpu: str, wheel_folder: Path) -> None:
    program = ["env", "-C", "/sipd", "python3", "-m", "tests.board.greedy_ids", "model.gguf", BOARDS[cpu], str(N_QUICK)]
    command = [*os.environ["SIPD_ARM64_RUN"].split(), "--cpu", cpu, "--bind", f"{wheel_folder}:/sipd", "--", *program]
    done = subprocess.run(
        command, input=json.dumps(EXPECTED["prompts"]), stdout=subprocess.PIPE, text=True, timeout=1800, check=True
    )
    assert json.loads(done.stdout) == [ids[:N_QUICK] for ids in EXPECTED["ids"]]
