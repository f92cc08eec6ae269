"""Stops every thread of a process but its first, as a debugger does, and keeps them stopped until it is ended itself.

A process that stands still as a whole is easy to notice. Here the event loop goes on turning while the engine is stuck.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207  # ptrace(2)


def main() -> None:
    """Prints how many threads stand still, then waits for a signal."""
    process = int(sys.argv[1])
    threads = [int(path.name) for path in Path(f"/proc/{process}/task").iterdir()]
    for thread in threads:
        if thread != process:
            for request in (PTRACE_SEIZE, PTRACE_INTERRUPT):
                _ptrace(request, thread)
    print(f"stopped {len(threads) - 1} threads of {process}", flush=True)
    signal.pause()


def _ptrace(request: int, thread: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    library.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    library.ptrace.restype = ctypes.c_long
    if library.ptrace(request, thread, None, None) < 0:
        raise OSError(ctypes.get_errno(), f"thread {thread}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main()
