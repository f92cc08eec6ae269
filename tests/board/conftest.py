"""The model of the board tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.models import smollm2_path


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct Q4_1."""
    return smollm2_path()
