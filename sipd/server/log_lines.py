"""Log lines on stderr: with journald's <N> priority prefix when stderr is the journal, with a level word otherwise.

Invariant: a message is one line, whatever the names in it hold; only a traceback takes more.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TextIO

from sipd.foreign_text import printable

_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}


class LineFormatter(logging.Formatter):
    """Formats a message as one line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Returns the message, what would break its line or steer a terminal escaped."""
        return printable(super().formatMessage(record))


class PriorityFormatter(LineFormatter):
    """Formats `<6>message`, as sd-daemon(3) describes; every line of a traceback gets the prefix."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the record as prefixed lines."""
        prefix = f"<{_PRIORITIES.get(record.levelno, 6)}>"
        return "\n".join(prefix + line for line in super().format(record).splitlines() or [""])


def set_up_logging(level: str, *, has_journal_stderr: bool, stream: TextIO | None = None) -> None:
    """Sends all `sipd` loggers to stderr (or `stream`) at `level`; a second call replaces the first."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        PriorityFormatter("%(message)s") if has_journal_stderr else LineFormatter("%(levelname)s %(message)s")
    )
    logger = logging.getLogger("sipd")
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False


def stderr_id() -> str | None:
    """Returns "device:inode" of stderr, the form of JOURNAL_STREAM, or None when stderr is closed."""
    try:
        status = os.fstat(2)
    except OSError:
        return None
    return f"{status.st_dev}:{status.st_ino}"
