"""Ctrl-C that always ends the command: a KeyboardInterrupt raised inside a callback of a library can be lost there."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_INTERRUPTED = 130
GRACE_S = 2.0  # what an interrupted command gets to end by itself


@contextmanager
def ends_on_interrupt() -> Iterator[None]:
    """While it lasts, SIGINT raises KeyboardInterrupt and ends the process with 130 when that leads to nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, _interrupt)
    alarm = signal.signal(signal.SIGALRM, _give_up)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGALRM, alarm)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    signal.setitimer(signal.ITIMER_REAL, GRACE_S)
    raise KeyboardInterrupt


def _give_up(_number: int, _frame: FrameType | None) -> None:
    os._exit(EXIT_INTERRUPTED)
