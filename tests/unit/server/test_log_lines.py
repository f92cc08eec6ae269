from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from sipd.server.log_lines import set_up_logging, stderr_id


@pytest.fixture(autouse=True)
def _loggers_as_before() -> Iterator[None]:
    logger = logging.getLogger("sipd")
    before = list(logger.handlers), logger.level, logger.propagate
    yield
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def lines(level: str, *, has_journal_stderr: bool) -> list[str]:
    stream = io.StringIO()
    set_up_logging(level, has_journal_stderr=has_journal_stderr, stream=stream)
    logging.getLogger("sipd.test").info("one")
    logging.getLogger("sipd.test").error("two\nthree")
    return stream.getvalue().splitlines()


def test_under_the_journal_every_line_has_its_priority() -> None:
    assert lines("info", has_journal_stderr=True) == ["<6>one", "<3>two", "<3>three"]


def test_elsewhere_a_level_word_stands_in_front() -> None:
    assert lines("info", has_journal_stderr=False) == ["INFO one", "ERROR two", "three"]


def test_lines_below_the_level_are_left_out() -> None:
    assert lines("error", has_journal_stderr=True) == ["<3>two", "<3>three"]


def test_stderr_is_named_as_systemd_names_it() -> None:
    device, _, inode = str(stderr_id()).partition(":")
    assert device.isdecimal()
    assert inode.isdecimal()
