"""The only place that opens model files for reading weights: direct where the file system allows it, else buffered.

Invariant: the descriptors it hands out stay open until `close`, or until `close_stale` after the next `reopen`.
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
        self._modified_ns: tuple[int, ...] = ()
        self._direct = direct
        self._stale: list[int] = []
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
        """Opens again without direct I/O; happens at most once, told by `fallback_reason`."""
        self._direct = "off"
        self.fallback_reason = reason
        self.reopen()

    def reopen(self) -> None:
        """Opens all files anew; the descriptors before stay open until `close_stale`, and in use when this raises.

        Raises StorageFault, or DataLoss when a file is not what it was.
        """
        try:
            found = self._open_direct() if self._direct != "off" else None
            fds, alignment = found or (self._open_all(0), 1)
        except OSError as error:
            name = error.filename or str(self._paths[0])
            raise StorageFault(str(name), 0, f"cannot open: {error.strerror}") from error
        try:
            if not self._modified_ns:
                self._modified_ns = tuple(os.fstat(fd).st_mtime_ns for fd in fds)
            self._check(fds)
        except BaseException:
            _close_all(fds)
            raise
        self._stale += self.fds
        self.fds = fds
        self.alignment = alignment

    def check(self) -> None:
        """Raises DataLoss when a file has changed since it was first opened, for what was read may be neither."""
        self._check(self.fds)

    def close_stale(self) -> None:
        """Closes what `reopen` replaced; nobody may be reading from it any more."""
        _close_all(self._stale)
        self._stale = []

    def close(self) -> None:
        """Closes every descriptor."""
        self.close_stale()
        _close_all(self.fds)
        self.fds = []

    def _open_all(self, flags: int) -> list[int]:
        fds: list[int] = []
        try:
            for path in self._paths:
                fds.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags))  # noqa: PERF401 - closed when one fails
        except OSError:
            _close_all(fds)
            raise
        return fds

    def _open_direct(self) -> tuple[list[int], int] | None:
        """Descriptors for direct reads and the alignment that they want; None when the file system refuses."""
        try:
            fds = self._open_all(os.O_DIRECT)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
            reason = f"the file system refuses O_DIRECT ({error.strerror})"
        else:
            try:
                for alignment in DIRECT_ALIGNMENTS:
                    if all(_probe(fd, path, alignment) for fd, path in zip(fds, self._paths, strict=True)):
                        return fds, alignment
            except OSError:
                _close_all(fds)
                raise
            _close_all(fds)
            reason = "the file system refuses direct reads"
        if self._direct == "on":
            raise StorageFault(str(self._paths[0]), 0, f"{reason}, and direct_io is on")
        self.fallback_reason = reason
        return None

    def _check(self, fds: Sequence[int]) -> None:
        for path, fd, size, modified_ns in zip(self._paths, fds, self._sizes, self._modified_ns, strict=True):
            found = os.fstat(fd)
            if found.st_size != size:
                message = f"the file has {found.st_size} bytes, {size} when it was loaded"
                raise DataLoss(str(path), min(found.st_size, size), message)
            if found.st_mtime_ns != modified_ns:
                raise DataLoss(str(path), 0, "the file was written to or replaced after it was loaded")


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


def _probe(fd: int, path: Path, alignment: int) -> bool:
    """Whether one read of `alignment` bytes at `alignment` works; raises OSError naming the file."""
    with mmap.mmap(-1, 2 * mmap.PAGESIZE) as buffer, memoryview(buffer) as view, view[:alignment] as part:
        try:
            os.preadv(fd, [part], alignment)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return False
            error.filename = str(path)
            raise
    return True


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
