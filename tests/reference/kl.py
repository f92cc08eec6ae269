"""How far sipd's and llama.cpp's next-token distributions are from those of the F32 model, on ordinary text.

`python -m tests.reference.kl MODEL [--text FILE] [--llama-python PYTHON]`. Prints KL(reference || engine) in nats and
how often both name the same most likely token. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sipd.text.tokenizer import Tokenizer
from sipd.weights.checkpoint import open_checkpoint
from tests.reference.sipd_logits import sipd_logits

HERE = Path(__file__).resolve().parent
ORACLE = Path.home() / ".cache" / "sipd" / "oracle"
REQUIREMENTS = ("torch==2.13.0", "transformers", "gguf", "numpy")
WINDOW = 512  # tokens
TARGET_RATIO = 1.1

Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Distance:
    """One engine beside the reference."""

    mean_kl: float
    max_kl: float
    top1_agreement: float


def distance(reference: Logits, other: Logits) -> Distance:
    """Returns the distance over all positions; computed in F64, position by position."""
    kls = np.empty(len(reference))
    for index, (row, other_row) in enumerate(zip(reference, other, strict=True)):
        p, q = _log_softmax(row), _log_softmax(other_row)
        kls[index] = np.sum(np.exp(p) * (p - q))
    same = reference.argmax(axis=1) == other.argmax(axis=1)
    return Distance(float(kls.mean()), float(kls.max()), float(same.mean()))


def _log_softmax(row: Logits) -> NDArray[np.float64]:
    shifted = row.astype(np.float64) - float(row.max())
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return result


def windows_of(model: Path, text: str) -> list[list[int]]:
    """Returns the text's ids in windows; each begins with BOS where the model wants one."""
    checkpoint = open_checkpoint(model)
    tokenizer = Tokenizer.from_gguf(checkpoint.metadata)
    trained = checkpoint.metadata.get(f"{checkpoint.metadata['general.architecture']}.context_length")
    length = min(WINDOW, trained) if isinstance(trained, int) else WINDOW
    bos = [tokenizer.bos_id] if tokenizer.adds_bos and tokenizer.bos_id is not None else []
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    step = length - len(bos)
    return [bos + ids[first : first + step] for first in range(0, len(ids), step)]


def oracle_python() -> Path:
    """Returns the interpreter of the oracle's environment; makes it on first use (torch is some 200 MB)."""
    python = ORACLE / "bin" / "python"
    if not (ORACLE / "complete").exists():
        venv.create(ORACLE, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS], check=True)
        check = "import sys, torch; sys.exit(torch.version.cuda is not None and 'pip chose a CUDA build of torch')"
        subprocess.run([python, "-c", check], check=True)
        (ORACLE / "complete").touch()
    return python


def run_script(python: Path, name: str, model: Path, windows: list[list[int]]) -> Logits:
    """Returns the logits that a script of this folder computes under another interpreter."""
    with tempfile.TemporaryDirectory(prefix="sipd-kl-") as folder:
        ids, out = Path(folder, "ids.json"), Path(folder, "logits.npy")
        ids.write_text(json.dumps(windows))
        subprocess.run([python, HERE / name, model, ids, out], check=True)
        logits: Logits = np.load(out)
        return logits


def main() -> int:
    """Prints the table; returns 1 when sipd is farther from the reference than 1.1 times llama.cpp is."""
    parser = argparse.ArgumentParser(prog="kl")
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, default=HERE / "prose.txt")
    parser.add_argument("--llama-python", type=Path, help="interpreter that has llama-cpp-python")
    options = parser.parse_args()
    windows = windows_of(options.model, options.text.read_text(encoding="utf-8"))
    reference = run_script(oracle_python(), "oracle_logits.py", options.model, windows)
    print(f"{options.model.name}, {options.text.name}: {len(reference)} positions in {len(windows)} windows")
    found = {"sipd": distance(reference, sipd_logits(options.model, windows))}
    if options.llama_python is not None:
        logits = run_script(options.llama_python, "llama_logits.py", options.model, windows)
        found["llama.cpp"] = distance(reference, logits)
    for name, each in found.items():
        print(
            f"{name:<10} mean KL {each.mean_kl:.6e}  max {each.max_kl:.6e}  top-1 agreement {each.top1_agreement:.2%}"
        )
    if "llama.cpp" not in found:
        return 0
    ratio = found["sipd"].mean_kl / found["llama.cpp"].mean_kl
    print(f"sipd / llama.cpp: {ratio:.3f}, wanted at most {TARGET_RATIO}")
    return int(ratio > TARGET_RATIO)


if __name__ == "__main__":
    sys.exit(main())
