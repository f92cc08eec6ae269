"""What every fuzz target promises of any input: it is taken or refused by a SipdError, soon, and with little memory.

Invariant: `bounded` lets nothing but success and well-formed refusals pass.
"""

from __future__ import annotations

import resource
import signal
import tempfile
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType

from sipd.errors import SipdError

MAX_INPUT_BYTES = 1 << 16
MAX_PEAK_BYTES = 24 << 20
MAX_CPU_S = 8.0  # real inputs take milliseconds; a template may use its million steps
MAX_MESSAGE_CHARS = 4096  # a gRPC status and a journal line hold it
MAX_ADDRESS_BYTES = 2 << 30  # of a fuzzing process: a template may ask for any memory
SEPARATOR = b"\n=====\n"


class BrokenPromiseError(Exception):
    """An input took too long, took too much memory, or was refused in a way that nobody can be told."""


@contextmanager
def bounded(*, max_peak_bytes: int = MAX_PEAK_BYTES) -> Iterator[None]:
    """Runs a parser: a SipdError is swallowed once its text is found fit to send, any other fault goes on.

    Raises BrokenPromiseError. Time is that of this process, so a busy machine changes nothing.
    """
    previous = signal.signal(signal.SIGVTALRM, _too_slow)
    signal.setitimer(signal.ITIMER_VIRTUAL, MAX_CPU_S)
    tracemalloc.start()
    try:
        yield
    except SipdError as error:
        check_message(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, previous)
    if peak > max_peak_bytes:
        raise BrokenPromiseError(f"the input took {peak} bytes, wanted at most {max_peak_bytes}")


def limit_memory() -> None:
    """Lets this process fail before the machine does; a process under AddressSanitizer cannot have this limit."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))


def check_message(error: SipdError) -> None:
    """Raises BrokenPromiseError unless the text of `error` is Unicode, not empty and short."""
    text = str(error)
    if not 0 < len(text) <= MAX_MESSAGE_CHARS:
        raise BrokenPromiseError(f"{type(error).__name__} has {len(text)} characters of text: {text[:200]!r}")
    try:
        text.encode()
    except UnicodeEncodeError as fault:
        raise BrokenPromiseError(f"{type(error).__name__} is no Unicode: {text[:200]!r}") from fault


@cache
def folder() -> Path:
    """Returns the folder of this process for the files that targets write; it goes with the process."""
    return Path(_temporary().name)


@cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="sipd-fuzz-", ignore_cleanup_errors=True)


def _too_slow(_signal: int, _frame: FrameType | None) -> None:
    raise BrokenPromiseError(f"the input took more than {MAX_CPU_S} s")
