"""Fixtures of the acceptance tests, and the figures that they print at the end of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.models import smollm2_path
from tests.acceptance.prompts import Prompts

_FIGURES = pytest.StashKey[list[str]]()

Figure = Callable[[str], None]


def pytest_configure(config: pytest.Config) -> None:
    """Makes room for figures."""
    config.stash[_FIGURES] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints what was measured."""
    if figures := config.stash[_FIGURES]:
        terminalreporter.section("figures")
        for line in figures:
            terminalreporter.write_line(line)


@pytest.fixture
def figure(pytestconfig: pytest.Config) -> Figure:
    """Returns a function that takes one line for the end of the run."""
    return pytestconfig.stash[_FIGURES].append


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct Q4_1."""
    return smollm2_path()


@pytest.fixture(scope="session")
def prompts(smollm2: Path) -> Prompts:
    """Prompts as SmolLM2's ids."""
    return Prompts(smollm2)
