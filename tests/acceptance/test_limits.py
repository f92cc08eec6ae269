"""Promise 3 while the limit moves: memory is given back, or new work refused, and taken again when there is room.

In a real memory cgroup, made as root; v2 or v1, whichever this machine has.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import grpc
import pytest

from sipd.weights.tensor_table import QuantType
from tests.acceptance.daemons import START_S, Daemon, next_ids, read_reply, request_for, running_daemon
from tests.builders import build_gguf

MIB = 1024**2
ROOT = Path("/sys/fs/cgroup")
PROMPT = tuple(range(5, 25))
ENTER = 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"'
NOTICED_S = 5.0  # looked at every second; a busy machine may take some more

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="making a cgroup takes root")


class Group:
    """One memory cgroup of the test."""

    def __init__(self, limit_bytes: int) -> None:
        self.is_v2 = (ROOT / "cgroup.controllers").exists()
        if self.is_v2:
            with suppress(OSError):  # on already, or not to be had: then the limit cannot be written below
                (ROOT / "cgroup.subtree_control").write_text("+memory")
        self.path = (ROOT if self.is_v2 else ROOT / "memory") / f"sipd-test-{os.getpid()}"
        try:
            self.path.mkdir()
            self.set_limit(limit_bytes)
        except OSError as error:
            self.remove()
            pytest.skip(f"no memory cgroup can be made here: {error}")

    def set_limit(self, n_bytes: int) -> None:
        (self.path / ("memory.max" if self.is_v2 else "memory.limit_in_bytes")).write_text(str(n_bytes))

    def enter(self, command: Sequence[str]) -> list[str]:
        """Returns the command as one that begins in the group."""
        return ["sh", "-c", ENTER, "sh", str(self.path), *command]

    def remove(self) -> None:
        """Removes the group; the kernel needs a moment after its last process."""
        deadline = time.monotonic() + START_S
        while self.path.exists() and time.monotonic() < deadline:
            try:
                self.path.rmdir()
            except OSError:
                os.sched_yield()


def limited_daemon(model: Path, group: Group) -> AbstractContextManager[Daemon]:
    """Runs `sipd serve` in the group until the block ends."""
    return running_daemon(model, "--context", "512", enter=group.enter)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 60 MB of weights, so that pinning them counts."""
    path = tmp_path_factory.mktemp("limits") / "m.gguf"
    return build_gguf(path, quant=QuantType.Q8_0, d_model=512, n_heads=8, d_ff=1536, n_layers=16, vocab_size=512)


@pytest.fixture
def group() -> Iterator[Group]:
    made = Group(400 * MIB)
    yield made
    made.remove()


def field(line: str, name: str) -> int:
    """Returns a number of an event's line."""
    found = re.search(rf"\b{name}=(\d+)", line)
    assert found is not None, line
    return int(found[1])


def settled(daemon: Daemon, pinned_below: int) -> int:
    """Waits until less is pinned; returns the bytes."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        pinned: int = daemon.status().storage.pinned_bytes
        if pinned < pinned_below:
            return pinned
    pytest.fail("nothing was given back")


def test_a_lowered_limit_is_noticed_and_pinned_weights_are_given_back_without_a_changed_token(
    model: Path, group: Group
) -> None:
    with limited_daemon(model, group) as daemon:
        wanted = daemon.ask(PROMPT, 30).ids
        before = daemon.status()
        live = daemon.start(request_for(PROMPT, 300))
        next_ids(live)
        limit = sum(term.bytes for term in before.memory.ledger) - 30 * MIB
        began = time.monotonic()
        group.set_limit(limit)
        lowered = daemon.wait_for_line("event=limit_lowered ")
        assert time.monotonic() - began < NOTICED_S
        assert (field(lowered, "limit_before"), field(lowered, "limit")) == (400 * MIB, limit // 4096 * 4096)
        shrunk = daemon.wait_for_line("event=memory_shrunk ")
        assert field(shrunk, "freed") >= field(lowered, "over") > 0
        assert field(shrunk, "over") == 0
        assert len(read_reply(live).ids) > 0
        assert daemon.ask(PROMPT, 30).ids == wanted
        after = daemon.status()
        assert after.memory.budget_bytes == limit // 4096 * 4096
        assert after.memory.limit_changes == 1
        given_up = before.storage.pinned_bytes - after.storage.pinned_bytes
        assert given_up >= field(lowered, "over")
        assert after.storage.pass_bytes == before.storage.pass_bytes + given_up
        assert sum(term.bytes for term in after.memory.ledger) <= after.memory.budget_bytes
        assert daemon.proc_kib("smaps_rollup", "Anonymous") * 1024 <= limit


def streamed_per_pass(daemon: Daemon) -> float:
    """Returns the weight bytes that a pass of a request takes from storage, rows of the embedding apart."""
    before = daemon.status().totals
    daemon.ask(PROMPT, 10)
    after = daemon.status().totals
    streamed = after.streamed_bytes - before.streamed_bytes - (after.embedding_bytes - before.embedding_bytes)
    return streamed / (after.passes - before.passes)


def granted(daemon: Daemon, name: str) -> int:
    """Returns the bytes of one term of the ledger."""
    return sum(term.bytes for term in daemon.status().memory.ledger if term.name == name)


def wait_for(is_there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_S
    while not is_there():
        assert time.monotonic() < deadline


def test_a_raised_limit_brings_pins_and_pages_back_and_a_pass_streams_what_it_did_at_first(
    model: Path, group: Group
) -> None:
    with limited_daemon(model, group) as daemon:
        wanted = daemon.ask(PROMPT, 30).ids
        first, streamed = daemon.status(), streamed_per_pass(daemon)
        needed = sum(term.bytes for term in first.memory.ledger)
        group.set_limit(needed - 30 * MIB)
        settled(daemon, first.storage.pinned_bytes)
        assert daemon.ask(PROMPT, 30).ids == wanted
        assert streamed_per_pass(daemon) > streamed + 20 * MIB
        group.set_limit(needed - granted(daemon, "pinned weights") - 30 * MIB - first.memory.kv_granted_bytes // 4)
        wait_for(lambda: daemon.status().memory.kv_granted_bytes < first.memory.kv_granted_bytes)
        low = daemon.status()
        assert low.storage.pinned_bytes < 5 * MIB
        assert granted(daemon, "KV cache") == low.memory.kv_granted_bytes
        wait_for(lambda: sum(term.bytes for term in daemon.status().memory.ledger) <= low.memory.budget_bytes)
        assert daemon.ask(PROMPT, 30).ids == wanted
        assert streamed_per_pass(daemon) > streamed + 40 * MIB
        group.set_limit(400 * MIB)
        daemon.wait_for_line("event=limit_raised ")
        wait_for(lambda: daemon.status().storage.pinned_bytes == first.storage.pinned_bytes)
        assert daemon.ask(PROMPT, 30).ids == wanted
        assert streamed_per_pass(daemon) == streamed
        last = daemon.status()
        assert last.storage.pass_bytes == first.storage.pass_bytes
        assert last.memory.kv_granted_bytes == first.memory.kv_granted_bytes
        assert sum(term.bytes for term in last.memory.ledger) == needed


def test_what_cannot_be_given_back_refuses_new_requests_until_the_limit_is_raised(model: Path, group: Group) -> None:
    with limited_daemon(model, group) as daemon:
        wanted = daemon.ask(PROMPT, 30).ids
        pinned, pages = daemon.status().storage.pinned_bytes, daemon.status().memory.kv_granted_bytes
        live = daemon.start(request_for(PROMPT, 400))
        next_ids(live)
        needed = sum(term.bytes for term in daemon.status().memory.ledger)
        group.set_limit(needed - pinned // 2)  # v1 takes no limit below what is in use: in two steps
        settled(daemon, pinned)
        used = daemon.proc_kib("smaps_rollup", "Anonymous") * 1024 + daemon.proc_kib("status", "RssFile") * 1024
        limit = max(needed - pinned - pages - 20 * MIB, used - pinned // 2 + 24 * MIB)
        assert limit < needed - pinned - pages
        group.set_limit(limit)
        daemon.wait_for_line("event=limit_lowered ", 2)
        daemon.wait_for_line("event=memory_shrunk ", 2)
        with pytest.raises(grpc.RpcError) as error:
            daemon.ask(PROMPT, 1)
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"lowered to {limit // 4096 * 4096} bytes while " in str(error.value.details())
        daemon.wait_for_line("finish_reason=refused error=MEMORY_LIMIT_LOWERED")
        assert len(read_reply(live).ids) > 0
        group.set_limit(400 * MIB)
        daemon.wait_for_line("event=limit_raised ")
        assert daemon.ask(PROMPT, 30).ids == wanted
        assert daemon.process.poll() is None


def test_another_process_of_the_group_that_is_killed_for_memory_is_named_and_the_daemon_lives(
    model: Path, group: Group
) -> None:
    hog = "open('/proc/self/oom_score_adj', 'w').write('1000'); x = bytearray(600 << 20); print(len(x))"
    with limited_daemon(model, group) as daemon:
        done = subprocess.run(
            group.enter([sys.executable, "-c", hog]), check=False, capture_output=True, timeout=START_S
        )
        assert done.returncode == -9
        line = daemon.wait_for_line("event=oom_kill ")
        assert field(line, "killed") == 1
        assert str(group.path) in line
        assert daemon.status().memory.cgroup.oom_kill_events == 1
        assert len(daemon.ask(PROMPT, 5).ids) == 5
