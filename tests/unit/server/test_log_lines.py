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
    try:
        int("odd")
    except ValueError:
        logging.getLogger("sipd.test").exception("two\nthree")
    return stream.getvalue().splitlines()


def test_under_the_journal_every_line_has_its_priority() -> None:
    found = lines("info", has_journal_stderr=True)
    assert found[0] == "<6>one"
    assert found[-1].startswith("<3>ValueError: ")
    assert all(line.startswith("<3>") for line in found[1:])


def test_elsewhere_a_level_word_stands_in_front() -> None:
    found = lines("info", has_journal_stderr=False)
    assert (found[0], found[2]) == ("INFO one", "Traceback (most recent call last):")


@pytest.mark.parametrize(("has_journal_stderr", "prefix"), [(True, "<3>"), (False, "ERROR ")])
def test_a_message_is_one_line_whatever_the_names_in_it_hold(has_journal_stderr: bool, prefix: str) -> None:
    assert lines("info", has_journal_stderr=has_journal_stderr)[1] == rf"{prefix}two\nthree"


def test_lines_below_the_level_are_left_out() -> None:
    assert lines("error", has_journal_stderr=True)[0].startswith("<3>two")


def test_stderr_is_named_as_systemd_names_it() -> None:
    device, _, inode = str(stderr_id()).partition(":")
    assert device.isdecimal()
    assert inode.isdecimal()
