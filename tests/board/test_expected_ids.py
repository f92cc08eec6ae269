"""The same bytes on every instruction set: committed ids, checked here and, with `-m board`, in an ARM64 system.

SIPD_ARM64_RUN names a command that runs a program in an ARM64 system with Python 3.11 or later:
`$SIPD_ARM64_RUN --cpu CPU --bind FOLDER:/sipd -- PROGRAM ...`. The library is cross-built with aarch64-linux-gnu-gcc.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sipd.kernels import binding
from tests.board.greedy_ids import greedy_ids

ROOT = Path(__file__).resolve().parents[2]
EXPECTED = json.loads(Path(__file__).with_name("expected_ids.json").read_text(encoding="utf-8"))
N_QUICK = 4  # tokens for instruction sets that compute slowly, and under emulation
# cortex-a72: no dot product (a Pi 4); cortex-a76: dot product (a Pi 5); max: int8 matrix products as well
BOARDS = {"cortex-a72": "neon", "cortex-a76": "neon_dotprod", "max": "neon_i8mm"}


@pytest.mark.parametrize("isa", binding.isa_names(binding.load_library()))
def test_the_ids_on_this_machine_are_the_committed_ones(isa: str, smollm2: Path) -> None:
    n_tokens = N_QUICK if isa == "portable" else EXPECTED["n_tokens"]
    wanted = [ids[:n_tokens] for ids in EXPECTED["ids"]]
    assert greedy_ids(smollm2, isa, EXPECTED["prompts"], n_tokens) == wanted


@pytest.fixture(scope="module")
def board_folder(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Path:
    """A folder with sipd built for ARM64, tests/board/greedy_ids.py and the model."""
    if "SIPD_ARM64_RUN" not in os.environ:
        pytest.skip("SIPD_ARM64_RUN is not set")
    if shutil.which("aarch64-linux-gnu-gcc") is None:
        pytest.skip("aarch64-linux-gnu-gcc is not installed")
    folder = tmp_path_factory.mktemp("board")
    for name in ("sipd", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copy(smollm2, folder / "model.gguf")
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--plat-name", "linux-aarch64"]
    environment = {**os.environ, "CC": "aarch64-linux-gnu-gcc", "LDSHARED": "aarch64-linux-gnu-gcc -shared"}
    subprocess.run(build, cwd=folder, env=environment, check=True)
    return folder


@pytest.mark.board
@pytest.mark.parametrize("cpu", BOARDS)
def test_the_ids_on_arm64_are_the_committed_ones(cpu: str, board_folder: Path) -> None:
    program = ["python3", "-m", "tests.board.greedy_ids", "/sipd/model.gguf", "auto", str(N_QUICK)]
    code = f"cd /sipd && exec {' '.join(program)}"
    run = [*os.environ["SIPD_ARM64_RUN"].split(), "--cpu", cpu, "--bind", f"{board_folder}:/sipd"]
    done = subprocess.run(
        [*run, "--", "sh", "-c", code],
        input=json.dumps(EXPECTED["prompts"]),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [ids[:N_QUICK] for ids in EXPECTED["ids"]]
