"""The manual pages of the Debian package name the commands that the programs have."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from sipd import cli as daemon
from sipd_client import cli as client

PACKAGING = Path(__file__).parents[2] / "packaging"


def commands(parser: argparse.ArgumentParser) -> dict[str, str | None]:
    """Returns command → its line of help."""
    (action,) = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    return {each.dest: each.help for each in action._choices_actions}


@pytest.mark.parametrize(
    ("page", "parser"), [("sipd.1", daemon._parser()), ("sipc.1", client._parser())], ids=["sipd", "sipc"]
)
def test_every_command_stands_there_with_its_line_of_help(page: str, parser: argparse.ArgumentParser) -> None:
    text = (PACKAGING / page).read_text(encoding="utf-8")
    section = re.split(r"^\.SH ", text.split(".SH COMMANDS\n")[1], flags=re.MULTILINE)[0]
    assert dict(re.findall(r"^\.TP\n\.B (\w+)\n(.+)$", section, re.MULTILINE)) == commands(parser)
