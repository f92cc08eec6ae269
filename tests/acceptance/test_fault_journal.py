"""Each fault that an operator meets leaves a line that names it. Real daemons; lines as they stand without a journal.

Tested elsewhere: the reads themselves under faults (tests/hostile/test_storage_faults.py), clock and limit events
(tests/unit/server/test_memory_watch.py), limits and killed neighbours (test_limits.py), exit codes and signals
(tests/unit/server/test_daemon.py).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import pytest

from sipd.weights.tensor_table import QuantType
from tests.acceptance.daemons import REPOSITORY, START_S, Daemon, next_ids, read_reply, request_for
from tests.builders import build_gguf
from tests.hostile.shim import compiled_shim

PROMPT = tuple(range(5, 25))
# Serves with a disk that SIGUSR1 breaks and SIGUSR2 mends; the shim stands before pread.
BREAKABLE = """
import ctypes, signal, sys
from sipd.cli import main
shim = ctypes.CDLL(None)
signal.signal(signal.SIGUSR1, lambda *_: shim.shim_set(b"errno", ctypes.c_long(5)))
signal.signal(signal.SIGUSR2, lambda *_: shim.shim_set(b"errno", ctypes.c_long(0)))
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of about 3 MB, streamed in every pass."""
    return build_gguf(tmp_path / "m.gguf", quant=QuantType.Q8_0, d_model=256, d_ff=512, n_layers=4, vocab_size=300)


Start = Callable[..., Daemon]


@pytest.fixture
def start(model: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts daemons on one socket path; all of them are ended after the test."""
    socket = tmp_path / "s"
    with ExitStack() as ends:

        def run(*flags: str, code: str = "", preload: Path | None = None, path: Path = model) -> Daemon:
            serve = ["serve", "--model", str(path), "--listen", f"unix:{socket}", "--pin", "off", "--ring-slots", "3"]
            program = ["-c", code] if code else ["-m", "sipd"]
            environment = dict(os.environ)
            if preload is not None:
                environment |= {"LD_PRELOAD": str(preload), "SHIM_PATH": str(path)}
            process = subprocess.Popen(
                [sys.executable, *program, *serve, "--tile-bytes", "65536", *flags],
                cwd=REPOSITORY,
                env=environment,
                stderr=subprocess.PIPE,
                text=True,
            )
            daemon = Daemon(process, f"unix:{socket}", socket)
            ends.callback(end, daemon)
            return daemon

        yield run


def end(daemon: Daemon) -> None:
    daemon.channel.close()
    if daemon.process.poll() is None:
        daemon.process.kill()
    daemon.process.wait(START_S)
    daemon._reader.join(START_S)
    if daemon.process.stderr is not None:
        daemon.process.stderr.close()


def last_line(daemon: Daemon) -> str:
    """Waits for the end; returns the last line."""
    daemon.process.wait(START_S)
    daemon._reader.join(START_S)
    return daemon.lines[-1]


def test_a_second_instance_says_who_has_the_socket_and_leaves_the_first_alone(start: Start) -> None:
    first = start()
    first.wait_for_line("event=started ")
    second = start()
    assert re.search(r"listen: unix:\S+: another daemon answers there", last_line(second))
    assert second.process.returncode == 78
    assert len(first.ask(PROMPT, 3).ids) == 3


def test_after_a_kill_the_next_daemon_removes_the_socket_says_so_and_gives_the_same_tokens(start: Start) -> None:
    first = start()
    first.wait_for_line("event=started ")
    wanted = first.ask(PROMPT, 8).ids
    call = first.start(request_for(PROMPT, 300))
    next_ids(call)
    first.process.kill()
    with pytest.raises(grpc.RpcError) as error:
        read_reply(call)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    first.process.wait(START_S)
    second = start()
    second.wait_for_line(f"removed the stale socket {second.socket}")
    second.wait_for_line("event=started ")
    assert second.ask(PROMPT, 8).ids == wanted


def test_a_stop_in_the_middle_of_a_prefill_names_the_signal_the_request_and_the_end(start: Start) -> None:
    daemon = start("--rows-per-pass", "16", "--grace-s", "0.1")
    daemon.wait_for_line("event=started ")
    call = daemon.start(request_for(tuple(range(5, 250)) * 2, 20))
    accepted = next(iter(call)).accepted
    daemon.process.send_signal(signal.SIGTERM)
    with suppress(grpc.RpcError):
        read_reply(call)
    assert "event=stopped " in last_line(daemon)
    assert daemon.process.returncode == 0
    daemon.wait_for_line("SIGTERM: stopping, live requests get 0.1 s")
    daemon.wait_for_line(f"request request_id={accepted.request_id} ")
    assert not daemon.socket.exists()


def test_a_model_file_that_shrinks_is_named_once_with_its_place(start: Start, model: Path) -> None:
    daemon = start()
    daemon.wait_for_line("event=started ")
    calls = [daemon.start(request_for(PROMPT, 400)) for _ in range(2)]
    for call in calls:
        next_ids(call)
    os.truncate(model, model.stat().st_size * 6 // 10)
    for call in calls:
        with pytest.raises(grpc.RpcError) as error:
            read_reply(call)
        assert error.value.code() is grpc.StatusCode.DATA_LOSS
    line = daemon.wait_for_line("event=model_changed ")
    assert f"path={model} " in line
    assert re.search(r" offset=\d+ error=MODEL_FILE_CHANGED\)$", line)
    assert daemon.process.poll() is None


def test_a_request_that_finds_no_room_is_named_with_the_reason(start: Start) -> None:
    daemon = start("--max-requests", "1", "--max-queued", "0")
    daemon.wait_for_line("event=started ")
    running = daemon.start(request_for(PROMPT, 400))
    next_ids(running)
    refused = request_for(PROMPT, 3)
    for name in ("one-too-many", "two-too-many"):
        refused.request_id = name
        with pytest.raises(grpc.RpcError) as error:
            read_reply(daemon.start(refused))
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    line = daemon.wait_for_line("event=request_refused ")
    assert line.startswith("WARNING request one-too-many refused: 0 requests are waiting, the queue holds 0 ")
    assert line.endswith(" (event=request_refused request_id=one-too-many error=QUEUE_FULL refused=1)")
    daemon.wait_for_line("request request_id=two-too-many .*finish_reason=refused error=QUEUE_FULL")
    assert sum("event=request_refused" in each for each in daemon.lines) == 1
    running.cancel()


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled_shim(tmp_path_factory.mktemp("shim"))


def test_a_disk_that_comes_back_within_seconds_is_a_warning_and_no_failed_request(start: Start, shim: Path) -> None:
    daemon = start(code=BREAKABLE, preload=shim)
    daemon.wait_for_line("event=started ")
    wanted = daemon.ask(PROMPT, 40).ids
    call = daemon.start(request_for(PROMPT, 40))
    ids = next_ids(call)
    daemon.process.send_signal(signal.SIGUSR1)
    line = daemon.wait_for_line("read failed with EIO: .*; trying again in ")
    assert "m.gguf: at byte " in line
    daemon.process.send_signal(signal.SIGUSR2)
    assert ids + read_reply(call).ids == wanted
    assert not any("event=storage_fault" in each for each in daemon.lines)


def test_a_disk_that_stays_away_is_a_storage_fault_and_what_comes_after_it_is_served(start: Start, shim: Path) -> None:
    daemon = start(code=BREAKABLE, preload=shim)
    daemon.wait_for_line("event=started ")
    wanted = daemon.ask(PROMPT, 8).ids
    daemon.process.send_signal(signal.SIGUSR1)
    with pytest.raises(grpc.RpcError) as error:
        daemon.ask(PROMPT, 400)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    line = daemon.wait_for_line("event=storage_fault ")
    assert re.search(r"storage failed: \S+m\.gguf: at byte \d+: read failed with EIO", line)
    assert line.endswith(" error=STORAGE_FAULT)")
    daemon.process.send_signal(signal.SIGUSR2)
    daemon.wait_for_line("finish_reason=error error=STORAGE_FAULT")
    assert daemon.ask(PROMPT, 8).ids == wanted


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
def test_a_model_on_a_read_only_file_system_is_served_and_nothing_is_written_beside_it(
    start: Start, model: Path, tmp_path: Path
) -> None:
    point = tmp_path / "ro"
    point.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "none", str(point)], check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no mount here: {mounted.stderr.decode()}")
    try:
        copy = Path(shutil.copy(model, point / "m.gguf"))
        subprocess.run(["mount", "-o", "remount,ro", str(point)], check=True)
        daemon = start(path=copy)
        daemon.wait_for_line("event=started ")
        assert len(daemon.ask(PROMPT, 5).ids) == 5
        end(daemon)
    finally:
        subprocess.run(["umount", str(point)], check=False)
