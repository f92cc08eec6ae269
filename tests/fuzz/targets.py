"""Finds the fuzz targets and their seeds by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
NAMES = ("gguf", "safetensors", "template", "tokenizer", "snapshot", "request")


@dataclass(frozen=True, slots=True)
class Target:
    """One target: its entry and the words that its inputs are made of."""

    name: str
    run: Callable[[bytes], None]
    dictionary: tuple[bytes, ...]


def load(name: str) -> Target:
    """Returns the target `name`, one of NAMES; imports what it tests."""
    module = importlib.import_module(f"tests.fuzz.fuzz_{name}")
    return Target(name, module.TestOneInput, module.DICTIONARY)


def seed_files(name: str) -> list[Path]:
    """Returns the committed inputs of a target, in the order of their names."""
    return sorted((CORPUS / name).iterdir())
