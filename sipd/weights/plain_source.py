"""The synchronous stand-in for the stream: reads each extent when it is asked for. Used by the NumPy twin.

Owned by the engine thread. Invariant: a pinned extent is read once; after a fault nothing is read until `recover`,
`recover_from` or `rewind`.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable

from sipd.errors import DataLoss, StorageFault
from sipd.weights.plan import Plan
from sipd.weights.reader import WeightFiles, read_exact
from sipd.weights.stream import StreamCounters

# Errors that mean "this file system does not do direct reads after all"
_DIRECT_REFUSED = frozenset({errno.EINVAL, errno.ENOTSUP})


class PlainSource:
    """One checkpoint's extents, in any order."""

    def __init__(self, plan: Plan, files: WeightFiles, pinned: frozenset[int]) -> None:
        """Reads nothing yet."""
        self._plan = plan
        self._files = files
        self._pinned = pinned
        self._kept: dict[int, bytes] = {}
        self._fault: tuple[StorageFault, int] | None = None
        self._report: Callable[[str], None] = lambda _message: None
        self._read_bytes = 0
        self._busy_s = 0.0

    @property
    def uses_direct_io(self) -> bool:
        """Whether reads bypass the page cache now."""
        return self._files.uses_direct_io

    def on_fallback(self, report: Callable[[str], None]) -> None:
        """`report` is called with one line when direct reads do not work: at once, or when that turns out."""
        self._report = report
        if self._files.fallback_reason:
            report(f"reading through the page cache: {self._files.fallback_reason}")

    def is_pinned(self, extent: int) -> bool:
        """Whether the extent stays in memory once it is read."""
        return extent in self._pinned

    def kept(self, extent: int) -> bytes | None:
        """A pinned extent that was read before, or None."""
        return self._kept.get(extent)

    def extent(self, index: int) -> bytes | None:
        """The bytes of an extent; None after a fault."""
        data = self._kept.get(index)
        if data is None:
            extent = self._plan.extents[index]
            data = self.read(extent.file_index, extent.offset, extent.length)
            if data is not None:
                self._read_bytes += extent.weight_bytes
                if index in self._pinned:
                    self._kept[index] = data
        return data

    def read(self, file_index: int, offset: int, length: int) -> bytes | None:
        """Bytes of one file; None after a fault."""
        if self._fault is not None:
            return None
        path = str(self._files.paths[file_index])
        begin = time.monotonic()
        try:
            return read_exact(self._files.fds[file_index], offset, length)
        except EOFError as error:
            self._fault = DataLoss(path, offset, f"the file ends early: {error}"), 0
        except OSError as error:
            number = error.errno or errno.EIO
            name = errno.errorcode.get(number, str(number))
            self._fault = StorageFault(path, offset, f"read failed with {name}: wanted {length} bytes"), number
        except IndexError:
            self._fault = StorageFault(path, offset, "read failed with EBADF: the file is not open"), errno.EBADF
        finally:
            self._busy_s += time.monotonic() - begin
        return None

    def rewind(self) -> None:
        """Forgets a fault; pinned extents stay."""
        self._fault = None

    def recover(self) -> None:
        """After a failed pass: reopens the files. Raises StorageFault or DataLoss when they are not as they were."""
        self._files.reopen()
        self._files.close_stale()
        self._fault = None

    def recover_from(self, fault: StorageFault, error_number: int) -> bool:
        """Whether the fault was direct I/O being refused, and reads are buffered from now on."""
        if error_number in _DIRECT_REFUSED and self._files.uses_direct_io:
            self._files.fall_back_to_buffered(str(fault))
            self._files.close_stale()
            self._report(f"direct reads failed, reading through the page cache from now on: {fault}")
            self._fault = None
            return True
        return False

    def fault(self) -> tuple[StorageFault, int] | None:
        """The latest fault and its errno (0: the file ended early), or None."""
        return self._fault

    def check_files(self) -> None:
        """Raises DataLoss when a file has changed since it was loaded."""
        self._files.check()

    def counters(self) -> StreamCounters:
        """Totals so far; may be called from any thread."""
        return StreamCounters(self._read_bytes, self._read_bytes, self._busy_s)

    def close(self) -> None:
        """Frees what is pinned and closes the files."""
        self._kept.clear()
        self._files.close()
