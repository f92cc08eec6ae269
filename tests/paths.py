"""Finds files that are shared beside the repository and skips a test where they are absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def shared_path(*parts: str) -> Path:
    """Returns a path below SIPD_SHARED, or below ../shared next to the repository root; skips when it is missing."""
    root = Path(os.environ.get("SIPD_SHARED") or Path(__file__).resolve().parents[2] / "shared")
    path = root.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return path
