"""The only place that opens model files for reading weights: direct where the file system allows it, else buffered.

Invariant: the descriptors it hands out stay open until `close` or the next `reopen`.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

from sipd.errors import DataLoss, StorageFault

DIRECT_ALIGNMENTS = (512, 4096)  # smallest first: less is read around each extent


class WeightFiles:
    """The open files of one checkpoint.

    `alignment` is that of offsets, lengths and addresses of every read; 1 when reads are buffered.
    """

    def __init__(self, paths: Sequence[Path], sizes: Sequence[int], *, direct: str = "auto") -> None:
        """Opens all files; `direct` is auto, on or off. Raises StorageFault or DataLoss."""
        self._paths = tuple(paths)
        self._sizes = tuple(sizes)
        self._direct = direct
        self.fds: list[int] = []
        self.alignment = 1
        self.fallback_reason = ""
        self.reopen()

    @property
    def uses_direct_io(self) -> bool:
        """Whether reads go past the page cache."""
        return self.alignment > 1

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files, by index."""
        return self._paths

    def fall_back_to_buffered(self, reason: str) -> None:
        """Closes and opens again without direct I/O; happens at most once, told by `fallback_reason`."""
        self._direct = "off"
        self.fallback_reason = reason
        self.reopen()

    def reopen(self) -> None:
        """Closes and opens all files. Raises StorageFault, or DataLoss when a file is not as long as it was."""
        self.close()
        try:
            alignment = self._open_direct() if self._direct != "off" else 0
            if not alignment:
                self._open_all(0)
                alignment = 1
        except OSError as error:
            self.close()
            name = error.filename or str(self._paths[0])
            raise StorageFault(str(name), 0, f"cannot open: {error.strerror}") from error
        self.alignment = alignment
        self._check_sizes()

    def close(self) -> None:
        """Closes every descriptor."""
        for fd in self.fds:
            os.close(fd)
        self.fds = []

    def _open_all(self, flags: int) -> None:
        for path in self._paths:
            self.fds.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags))

    def _open_direct(self) -> int:
        """Opens for direct reads and probes the alignment; 0 when the file system refuses."""
        try:
            self._open_all(os.O_DIRECT)
            for alignment in DIRECT_ALIGNMENTS:
                if all(self._probe(fd, alignment) for fd in self.fds):
                    return alignment
            reason = "the file system refuses direct reads"
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
            reason = f"the file system refuses O_DIRECT ({error.strerror})"
        self.close()
        if self._direct == "on":
            raise StorageFault(str(self._paths[0]), 0, f"{reason}, and direct_io is on")
        self.fallback_reason = reason
        return 0

    @staticmethod
    def _probe(fd: int, alignment: int) -> bool:
        """Whether one read of `alignment` bytes at `alignment` works."""
        with mmap.mmap(-1, 2 * mmap.PAGESIZE) as buffer, memoryview(buffer) as view, view[:alignment] as part:
            try:
                os.preadv(fd, [part], alignment)
            except OSError as error:
                if error.errno == errno.EINVAL:
                    return False
                raise
        return True

    def _check_sizes(self) -> None:
        for path, fd, size in zip(self._paths, self.fds, self._sizes, strict=True):
            found = os.fstat(fd).st_size
            if found < size:
                self.close()
                raise DataLoss(str(path), found, f"the file has {found} bytes, {size} when it was loaded")


def read_exact(fd: int, offset: int, length: int) -> bytes:
    """`length` bytes at `offset`, through an aligned buffer so that it works on a direct descriptor as well.

    Raises EOFError when the file ends early, OSError as the kernel reports it. For small tensors and the NumPy twin.
    """
    begin = offset // 4096 * 4096
    capacity = -(-(offset + length - begin) // 4096) * 4096
    with mmap.mmap(-1, capacity) as buffer:
        got = 0
        with memoryview(buffer) as view:
            while got < offset + length - begin:
                with view[got:] as part:
                    count = os.preadv(fd, [part], begin + got)
                if count == 0:
                    raise EOFError(f"wanted {length} bytes at {offset}, the file ends at {begin + got}")
                got += count
        return buffer[offset - begin : offset - begin + length]
