"""A disk of snapshots that hangs costs the snapshots and a bounded wait: never a request, never its pages.

The disk is an ext4 file system in a file, frozen and thawed as for a backup: while it is frozen, calls that write to
it wait in the kernel. Takes root and a loop device.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from sipd.weights.tensor_table import QuantType
from tests.acceptance.daemons import SETTLE_S, START_S, Daemon, running_daemon
from tests.builders import build_gguf

TOKENS = 200
HANG_S = 3.0
# The daemon with less patience, so that the test needs less too.
IMPATIENT = f"""
import sys
from sipd.engine import snapshot_build, snapshot_worker
snapshot_worker.HANG_S = snapshot_build.OPEN_S = {HANG_S}
from sipd.cli import main
sys.exit(main(sys.argv[1:]))
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting and freezing take root")


class Disk:
    """A file system that can be frozen."""

    def __init__(self, point: Path) -> None:
        self.point = point
        self._is_frozen = False

    def freeze(self) -> None:
        """From now on, calls that write wait."""
        subprocess.run(["fsfreeze", "--freeze", str(self.point)], check=True, timeout=START_S)
        self._is_frozen = True

    def thaw(self) -> None:
        """Lets them go on."""
        if self._is_frozen:
            subprocess.run(["fsfreeze", "--unfreeze", str(self.point)], check=True, timeout=START_S)
            self._is_frozen = False

    def n_files(self) -> int:
        """Whole snapshots."""
        return len(list(self.point.rglob("*.kv")))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A mounted file system of 32 MB."""
    image, point = tmp_path / "image", tmp_path / "disk"
    if not all(map(shutil.which, ("mkfs.ext4", "fsfreeze", "mount"))):
        pytest.skip("no mkfs.ext4 or fsfreeze here")
    point.mkdir()
    image.touch()
    os.truncate(image, 32 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True, timeout=START_S)
    mounted = subprocess.run(["mount", "-o", "loop", str(image), str(point)], check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no mount here: {mounted.stderr.decode()}")
    made = Disk(point)
    try:
        yield made
    finally:
        made.thaw()
        subprocess.run(["umount", str(point)], check=True, timeout=START_S)


@pytest.fixture
def start(tmp_path: Path, disk: Disk) -> Callable[[], AbstractContextManager[Daemon]]:
    """Starts a daemon that keeps heads of 64 tokens on the disk."""
    model = build_gguf(tmp_path / "m.gguf", quant=QuantType.Q8_0, d_model=256, d_ff=512, n_layers=4, vocab_size=300)

    def impatient(command: list[str]) -> list[str]:
        assert command[:3] == [sys.executable, "-m", "sipd"]
        return [sys.executable, "-c", IMPATIENT, *command[3:]]

    flags = ("--snapshot-dir", str(disk.point / "kv"), "--snapshot-min-tokens", "64")
    return lambda: running_daemon(model, *flags, enter=impatient)


def prompt(first: int) -> list[int]:
    return [5 + (first + n) % 290 for n in range(TOKENS)]


def wait_until(is_so: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(SETTLE_S / 0.05)):
        if is_so():
            return
        pause.wait(0.05)
    raise AssertionError("it never came to be so")


def test_a_prompt_on_a_disk_that_hangs_is_computed_and_says_the_same(
    disk: Disk, start: Callable[[], AbstractContextManager[Daemon]]
) -> None:
    with start() as daemon:
        wanted = daemon.ask(prompt(0), 8).ids
        wait_until(lambda: disk.n_files() == 1)
    with start() as daemon:
        disk.freeze()
        reply = daemon.ask(prompt(0), 8)
        assert reply.ids == wanted
        assert reply.finished.usage.restored_tokens == 0
        line = daemon.wait_for_line("event=snapshot_failed ")
        assert f"{disk.point / 'kv'}: the disk has not answered for " in line
        disk.thaw()
    assert sum("event=snapshot_failed" in each for each in daemon.lines) == 1
    with start() as daemon:
        reply = daemon.ask(prompt(0), 8)
        assert reply.ids == wanted
        assert reply.finished.usage.restored_tokens > 0, "the snapshot is as good as before"


def test_a_disk_that_hangs_in_a_write_holds_no_pages_for_long_and_is_used_again_when_it_moves(
    disk: Disk, start: Callable[[], AbstractContextManager[Daemon]]
) -> None:
    with start() as daemon:
        daemon.ask([7, 8], 1)
        disk.freeze()
        replies = [daemon.ask(prompt(first), 8).ids for first in (0, 50)]
        assert daemon.status().memory.kv_used_bytes > 0, "the writer holds what it is to write"
        daemon.wait_for_line("event=snapshot_failed ")
        wait_until(lambda: daemon.status().memory.kv_used_bytes == 0)
        assert daemon.ask(prompt(100), 8).finished.usage.cached_tokens == 0
        assert daemon.status().memory.kv_used_bytes == 0, "no snapshot is begun while the disk hangs"
        disk.thaw()
        wait_until(lambda: bool(daemon.ask(prompt(150), 8)) and disk.n_files() > 0)
        assert [daemon.ask(prompt(first), 8).ids for first in (0, 50)] == replies


def test_a_daemon_starts_though_its_snapshot_disk_hangs(
    disk: Disk, start: Callable[[], AbstractContextManager[Daemon]]
) -> None:
    disk.freeze()
    with start() as daemon:
        daemon.wait_for_line(f"{disk.point / 'kv'}: the disk has not answered for 3 s: no snapshots until a restart")
        assert len(daemon.ask(prompt(0), 8).ids) == 8
        disk.thaw()
