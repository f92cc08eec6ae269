"""Cuts a partition out of the disk that brought the board its files, and changes its size while it is mounted.

    partition.py add MEMBER    the file MEMBER of the tar on that disk becomes its first partition
    partition.py cut SECONDS   all but its first MiB gives EIO for that long
    partition.py cut           the same from now on
    partition.py whole         all of it can be read again

The kernel refuses what lies behind the end of a partition as it refuses a broken sector: no module is needed for that.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import sys
import tarfile
import time
from pathlib import Path

DISK = Path("/dev/vdb")
PLACE = Path("/run/partition")  # where "add" found it, for the others
BLKPG, ADD, RESIZE = 0x1269, 1, 3  # linux/blkpg.h
LEFT_BYTES = 1 << 20


class _Partition(ctypes.Structure):
    _fields_ = (
        ("start", ctypes.c_longlong),
        ("length", ctypes.c_longlong),
        ("number", ctypes.c_int),
        ("names", ctypes.c_char * 128),
    )


class _Argument(ctypes.Structure):
    _fields_ = (("op", ctypes.c_int), ("flags", ctypes.c_int), ("size", ctypes.c_int), ("data", ctypes.c_void_p))


def main() -> None:
    """Does what the first argument says; raises OSError as the kernel answers."""
    command = sys.argv[1]
    if command == "add":
        with tarfile.open(DISK) as archive:
            member = archive.getmember(sys.argv[2])
        PLACE.write_text(f"{member.offset_data} {member.size}", encoding="ascii")
    start, size = map(int, PLACE.read_text(encoding="ascii").split())
    if command == "add":
        _change(ADD, start, size)
    if command == "cut":
        _change(RESIZE, start, LEFT_BYTES)
        time.sleep(float(sys.argv[2]) if sys.argv[2:] else 0)
    if command == "whole" or (command == "cut" and sys.argv[2:]):
        _change(RESIZE, start, size)


def _change(op: int, start: int, length: int) -> None:
    partition = _Partition(start, length, 1)
    argument = _Argument(op, 0, ctypes.sizeof(partition), ctypes.addressof(partition))
    fd = os.open(DISK, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, BLKPG, bytes(argument))
    finally:
        os.close(fd)
    print(f"{DISK}1: {length} bytes from {start}", flush=True)


if __name__ == "__main__":
    main()
