"""The parts of a Markdown document that tests hold against the code.

Invariant: asking for what is not there fails, so that no test passes over an empty table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sipd.errors import SipdError


def section(text: str, title: str) -> str:
    """Returns the text below a heading, up to the next one of its level or above it."""
    heading = re.search(rf"^(##+) {re.escape(title)}\n", text, re.MULTILINE)
    assert heading is not None, title
    return re.split(rf"^#{{2,{len(heading[1])}}} ", text[heading.end() :], maxsplit=1, flags=re.MULTILINE)[0]


def cells(line: str) -> list[str]:
    """Returns the cells of one line of a table."""
    return [cell.strip() for cell in line.strip("|").split("|")]


def rows(text: str) -> list[list[str]]:
    """Returns the cells of every table row that begins with a name in backquotes."""
    found = [cells(line) for line in text.splitlines() if line.startswith("| `")]
    assert found
    return found


def status_cells(exit_prefix: str) -> dict[str, str]:
    """Returns reason → the cell beside it, for every error: its gRPC status, or its exit code behind a prefix."""
    local = {"CONFIG_REFUSED", "MODEL_REFUSED", "BUDGET_TOO_SMALL", "PULL_FAILED"}
    return {
        each.reason: f"{exit_prefix}{each.exit_code}" if each.reason in local else f"`{each.grpc_status}`"
        for each in _errors(SipdError)
    }


def _errors(root: type[SipdError]) -> Iterator[type[SipdError]]:
    yield root
    for each in root.__subclasses__():
        yield from _errors(each) if each.__module__ == SipdError.__module__ else ()
