"""A real daemon in a process of its own, on a Unix socket, and the calls that tests make to it."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import grpc

from sipd.v1 import generation_pb2 as pb
from sipd.v1 import status_pb2
from sipd.v1.generation_pb2_grpc import GenerationServiceStub
from sipd.v1.status_pb2_grpc import StatusServiceStub

REPOSITORY = Path(__file__).resolve().parents[2]
START_S = 60.0
CALL_S = 600.0
SETTLE_S = 30.0


class Call(Protocol):
    """What grpc returns for a stream of events."""

    def __iter__(self) -> Iterator[pb.GenerateResponse]:
        """The events."""

    def cancel(self) -> None:
        """Ends the call."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The ids, text and last event of one call."""

    ids: list[int]
    text: str
    finished: pb.Finished


def request_for(prompt_ids: Sequence[int], max_tokens: int, sampling: pb.Sampling | None = None) -> pb.GenerateRequest:
    """Returns a request that no end token ends."""
    return pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=prompt_ids),
        sampling=sampling or pb.Sampling(temperature=0.0),
        stop=pb.Stop(max_tokens=max_tokens, ignore_end_tokens=True),
    )


def read_reply(call: Call) -> Reply:
    """Reads a call to its end."""
    ids: list[int] = []
    text = ""
    for response in call:
        if response.HasField("token"):
            ids += response.token.ids
            text += response.token.text
        if response.HasField("finished"):
            return Reply(ids, text, response.finished)
    raise AssertionError("the stream ended without Finished")


def next_ids(call: Call) -> list[int]:
    """Returns the ids of the next token event; blocks."""
    for response in call:
        if response.HasField("token") and response.token.ids:
            return list(response.token.ids)
    raise AssertionError("the stream ended before a token")


class Daemon:
    """One `sipd serve` and a channel to it."""

    def __init__(self, process: subprocess.Popen[str], target: str, socket: Path) -> None:
        self.process = process
        self.target = target
        self.socket = socket
        self.lines: list[str] = []
        self._line_came = threading.Condition()
        self._is_closed = False
        self._reader = threading.Thread(target=self._read_lines, daemon=True)
        self._reader.start()
        self.channel = grpc.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)])
        self.generation = GenerationServiceStub(self.channel)
        self._status = StatusServiceStub(self.channel)

    def _read_lines(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._line_came:
                self.lines.append(line.rstrip("\n"))
                self._line_came.notify_all()
        with self._line_came:
            self._is_closed = True
            self._line_came.notify_all()

    def wait_for_line(self, pattern: str, n_times: int = 1, timeout_s: float = START_S) -> str:
        """Returns the n-th line on stderr that matches; fails when the daemon ends before or time is up."""

        def matching() -> list[str]:
            return [line for line in self.lines if re.search(pattern, line)]

        with self._line_came:
            self._line_came.wait_for(lambda: len(matching()) >= n_times or self._is_closed, timeout_s)
            found = matching()
            assert len(found) >= n_times, "\n".join([f"no line matches {pattern!r}", *self.lines[-20:]])
            return found[n_times - 1]

    def record(self, request_id: str) -> dict[str, str]:
        """Returns the journal record of a request."""
        line = self.wait_for_line(rf"request request_id={request_id} ")
        return dict(part.split("=", 1) for part in line.split() if "=" in part)

    def start(self, request: pb.GenerateRequest, timeout_s: float = CALL_S) -> Call:
        """Returns a call under way."""
        return cast(Call, self.generation.Generate(request, timeout=timeout_s))

    def ask(self, prompt_ids: Sequence[int], max_tokens: int, sampling: pb.Sampling | None = None) -> Reply:
        """Returns the reply to one request."""
        return read_reply(self.start(request_for(prompt_ids, max_tokens, sampling)))

    def status(self) -> status_pb2.GetStatusResponse:
        """Returns the daemon's own account of itself."""
        status: status_pb2.GetStatusResponse = self._status.GetStatus(status_pb2.GetStatusRequest(), timeout=SETTLE_S)
        return status

    def context_tokens(self) -> int:
        """Returns the context that the budget gave, as a short request is told."""
        probe = self.start(request_for([1, 2], 1))
        accepted = next(iter(probe)).accepted
        read_reply(probe)
        return int(accepted.context_tokens)

    def proc_kib(self, file: str, name: str) -> int:
        """Returns one figure of /proc/PID/FILE."""
        found = re.search(rf"^{name}:\s+(\d+)", Path(f"/proc/{self.process.pid}/{file}").read_text("ascii"), re.M)
        assert found is not None
        return int(found[1])

    def settled_status(self) -> status_pb2.GetStatusResponse:
        """Returns a status between two equal counts of device bytes: read-ahead has filled the ring."""
        pause = threading.Event()
        last = self.status()
        for _ in range(int(SETTLE_S / 0.1)):
            pause.wait(0.1)
            now = self.status()
            if now.totals.device_bytes == last.totals.device_bytes and now.queue.active == 0:
                return now
            last = now
        raise AssertionError("the readers never came to rest")


@contextmanager
def running_daemon(
    model: Path, *flags: str, isa: str = "auto", enter: Callable[[list[str]], list[str]] = list
) -> Iterator[Daemon]:
    """Runs `sipd serve` until the block ends; fails when it does not get ready. `enter` wraps its command."""
    with tempfile.TemporaryDirectory(prefix="sipd-") as folder:
        socket = Path(folder, "s")
        command = [sys.executable, "-m", "sipd", "serve", "--model", str(model), "--listen", f"unix:{socket}"]
        process = subprocess.Popen(
            enter([*command, "--isa", isa, *flags]), cwd=REPOSITORY, stderr=subprocess.PIPE, text=True, encoding="utf-8"
        )
        daemon = Daemon(process, f"unix:{socket}", socket)
        try:
            daemon.wait_for_line("serving ")
            yield daemon
        finally:
            daemon.channel.close()
            process.terminate()
            try:
                process.wait(START_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            daemon._reader.join(START_S)
            assert process.stderr is not None
            process.stderr.close()


class AnonymousSampler:
    """Watches a process's anonymous memory from outside, every 5 ms."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak_bytes = 0

    def _watch(self) -> None:
        while not self._is_over.wait(0.005):
            self.peak_bytes = max(self.peak_bytes, self._daemon.proc_kib("status", "RssAnon") * 1024)

    def __enter__(self) -> AnonymousSampler:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._is_over.set()
        self._thread.join()
        exact = self._daemon.proc_kib("smaps_rollup", "Anonymous") * 1024
        self.peak_bytes = max(self.peak_bytes, exact)
