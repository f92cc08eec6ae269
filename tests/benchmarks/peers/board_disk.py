"""A loop device with a board's read-ahead: many servers read ahead megabytes, which flatters mmap. Needs root."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ROOM_BYTES = 192 * 1024**2  # for the file system itself


@contextmanager
def on_board_disk(model: Path, folder: Path, read_ahead_kib: int) -> Iterator[Path]:
    """Yields a copy of `model` on an ext4 loop device of `read_ahead_kib`; takes everything down again."""
    image, point = folder / "board.img", folder / "board"
    point.mkdir(exist_ok=True)
    size = model.stat().st_size + _ROOM_BYTES
    _run("fallocate", "-l", str(size), str(image))
    loop = ""
    try:
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
        loop = _run("losetup", "--direct-io=on", "--show", "-f", str(image))
        _run("blockdev", "--setra", str(read_ahead_kib * 2), loop)
        _run("mount", "-o", "noatime", loop, str(point))
        try:
            yield Path(shutil.copyfile(model, point / model.name))
        finally:
            _run("umount", str(point))
    finally:
        if loop:
            _run("losetup", "-d", loop)
        image.unlink()
        point.rmdir()


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
