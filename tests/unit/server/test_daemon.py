"""The daemon's life as a process: start, signals, exit codes, what systemd hears."""

# ruff: noqa: ANN401 - grpc's channels and calls are untyped

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from sipd.v1 import generation_pb2 as pb
from tests.certificates import make_tls_folder
from tests.unit.server.fakes import WAIT_S

ROOT = Path(__file__).resolve().parents[3]


class Daemon:
    """A daemon in its own process, with the receiving end of its NOTIFY_SOCKET."""

    def __init__(self, folder: Path, fault: str, *flags: str, enter: Sequence[str] = ()) -> None:
        self.target = f"unix:{folder}/sipd.sock"
        self.socket_path = folder / "sipd.sock"
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(str(folder / "notify"))
        self.notify.settimeout(WAIT_S)
        config = folder / "sipd.toml"
        config.write_text("")
        environ = {name: value for name, value in os.environ.items() if not name.startswith("SIPD_")}
        environ |= {"NOTIFY_SOCKET": str(folder / "notify"), "WATCHDOG_USEC": "1000000"}
        command = [sys.executable, "-m", "tests.unit.server.run_fake_daemon", fault, "serve", "--config", str(config)]
        command = [*enter, *command, "--model", "tiny.gguf", "--listen", self.target, *flags]
        self.process = subprocess.Popen(command, cwd=ROOT, env=environ, stderr=subprocess.PIPE, text=True)

    def hears(self, wanted: str) -> list[str]:
        """Waits until systemd was told `wanted`; returns everything told until then."""
        told: list[str] = []
        while not told or wanted not in told[-1]:
            told.append(self.notify.recv(4096).decode())
        return told

    def ends(self) -> tuple[int, list[str]]:
        """Waits for the end; returns exit code and the lines on stderr."""
        _, errors = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, errors.splitlines()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        if self.process.stderr is not None:
            self.process.stderr.close()
        self.process.wait(WAIT_S)
        self.notify.close()


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Any]:
    started: list[Daemon] = []

    def start(fault: str, *flags: str, enter: Sequence[str] = ()) -> Daemon:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Daemon(folder, fault, *flags, enter=enter))
        return started[-1]

    yield start
    for daemon in started:
        daemon.close()


def generate(channel: grpc.Channel) -> Any:
    method = channel.unary_stream(
        "/sipd.v1.GenerationService/Generate",
        request_serializer=pb.GenerateRequest.SerializeToString,
        response_deserializer=pb.GenerateResponse.FromString,
    )
    return method(pb.GenerateRequest(prompt="hello"), timeout=WAIT_S)


def health(channel: grpc.Channel) -> int:
    method = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    return int(method(health_pb2.HealthCheckRequest(), timeout=WAIT_S).status)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_an_idle_daemon_with_exit_0_and_no_socket_left(daemons: Any, number: signal.Signals) -> None:
    daemon = daemons("none")
    daemon.hears("READY=1")
    daemon.signal(number)
    daemon.hears("STOPPING=1")
    assert daemon.ends()[0] == 0
    assert not daemon.socket_path.exists()


def test_ready_means_that_requests_are_served(daemons: Any) -> None:
    daemon = daemons("none")
    assert "STATUS=serving tiny, 0 active" in daemon.hears("READY=1")[-1]
    with grpc.insecure_channel(daemon.target) as channel:
        assert health(channel) == health_pb2.HealthCheckResponse.SERVING
        assert [event.WhichOneof("event") for event in generate(channel)][-1] == "finished"


def test_a_live_stream_is_finished_within_the_grace(daemons: Any) -> None:
    daemon = daemons("slow")
    daemon.hears("READY=1")
    with grpc.insecure_channel(daemon.target) as channel:
        events = generate(channel)
        assert next(events).WhichOneof("event") == "accepted"
        daemon.signal(signal.SIGTERM)
        daemon.hears("STOPPING=1")
        assert "".join(event.token.text for event in events) == "AAAAA"
    assert daemon.ends()[0] == 0


def test_a_stream_that_outlives_the_grace_is_ended_and_the_exit_is_0(daemons: Any) -> None:
    daemon = daemons("endless", "--grace-s", "0.2")
    daemon.hears("READY=1")
    with grpc.insecure_channel(daemon.target) as channel:
        events = generate(channel)
        next(events)
        daemon.signal(signal.SIGTERM)
        with pytest.raises(grpc.RpcError) as caught:
            list(events)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert caught.value.details() == "the daemon stopped before the request was complete"
    assert daemon.ends()[0] == 0


def test_new_calls_are_refused_while_draining(daemons: Any) -> None:
    daemon = daemons("endless", "--grace-s", "3")
    daemon.hears("READY=1")
    with grpc.insecure_channel(daemon.target) as channel:
        first = generate(channel)
        next(first)
        daemon.signal(signal.SIGTERM)
        daemon.hears("STOPPING=1")
        with pytest.raises(grpc.RpcError) as caught:
            list(generate(channel))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "stopping" in str(caught.value.details())
        assert health(channel) == health_pb2.HealthCheckResponse.NOT_SERVING


def test_a_second_signal_ends_at_once(daemons: Any) -> None:
    daemon = daemons("endless", "--grace-s", "600")
    daemon.hears("READY=1")
    with grpc.insecure_channel(daemon.target) as channel:
        next(generate(channel))
        daemon.signal(signal.SIGTERM)
        daemon.hears("STOPPING=1")
        daemon.signal(signal.SIGTERM)
        assert daemon.ends()[0] == 128 + signal.SIGTERM
    assert not daemon.socket_path.exists()


def test_a_model_that_is_refused_exits_78_with_the_reason_as_last_line(daemons: Any) -> None:
    code, lines = daemons("unsupported").ends()
    assert (code, lines[-1]) == (78, "sipd: tiny.gguf: architecture 'mamba' is not supported")


def test_a_dead_engine_ends_the_daemon_with_a_restartable_code(daemons: Any) -> None:
    code, lines = daemons("dead").ends()
    assert code == 70
    assert "the engine is dead: boom" in lines[-1]


def test_a_changed_model_file_makes_the_daemon_unhealthy_until_a_request_succeeds(daemons: Any) -> None:
    daemon = daemons("loss")
    daemon.hears("READY=1")
    with grpc.insecure_channel(daemon.target) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            list(generate(channel))
        assert caught.value.code() is grpc.StatusCode.DATA_LOSS
        assert health(channel) == health_pb2.HealthCheckResponse.NOT_SERVING
        list(generate(channel))
        assert health(channel) == health_pb2.HealthCheckResponse.SERVING


def test_an_address_in_use_exits_78(daemons: Any) -> None:
    first = daemons("none")
    first.hears("READY=1")
    code, lines = daemons("none", "--listen", first.target).ends()
    assert code == 78
    assert "another daemon answers there" in lines[-1]


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """A token file that the daemon accepts."""
    path = tmp_path / "tokens"
    path.write_text("a-token-of-24-characters")
    path.chmod(0o600)
    return path


def test_a_hangup_reloads_the_tokens(daemons: Any, tokens: Path) -> None:
    daemon = daemons("none", "--token-file", str(tokens))
    daemon.hears("READY=1")
    daemon.signal(signal.SIGHUP)
    daemon.hears("RELOADING=1")
    daemon.hears("READY=1")


def test_a_bad_token_file_at_a_hangup_is_told_and_the_status_line_stays(daemons: Any, tokens: Path) -> None:
    daemon = daemons("none", "--token-file", str(tokens))
    daemon.hears("READY=1")
    tokens.write_text("short")
    daemon.signal(signal.SIGHUP)
    assert "STATUS=serving tiny" in daemon.hears("READY=1")[-1]
    daemon.signal(signal.SIGTERM)
    _, lines = daemon.ends()
    assert any(f"reload failed, everything stays as it was: token_file: {tokens}: line 1" in x for x in lines)


def test_a_hangup_while_the_token_file_is_a_fifo_is_told_and_calls_are_served_on(daemons: Any, tokens: Path) -> None:
    daemon = daemons("none", "--token-file", str(tokens))
    daemon.hears("READY=1")
    tokens.unlink()
    os.mkfifo(tokens)
    daemon.signal(signal.SIGHUP)
    daemon.hears("READY=1")
    with grpc.insecure_channel(daemon.target) as channel:
        assert health(channel) == health_pb2.HealthCheckResponse.SERVING
    daemon.signal(signal.SIGTERM)
    code, lines = daemon.ends()
    assert code == 0
    assert any(f"token_file: {tokens}: found a FIFO, wanted a plain file" in line for line in lines)


def test_a_hangup_in_the_first_moment_of_a_start_does_not_end_it(daemons: Any) -> None:
    assert "STATUS=serving tiny" in daemons("hangup").hears("READY=1")[-1]


OPEN_FILES = ("sh", "-c", 'ulimit -n "$0" && exec "$@"')


def test_too_few_file_descriptors_for_the_connections_exit_78_with_both_numbers(daemons: Any) -> None:
    code, lines = daemons("none", enter=(*OPEN_FILES, "72")).ends()
    assert code == 78
    assert "take up to 128 open files, the limit is 72 (" in lines[-1]


def test_with_just_enough_file_descriptors_as_many_connections_as_an_address_takes_end_nothing(daemons: Any) -> None:
    daemon = daemons("none", enter=(*OPEN_FILES, "128"))
    daemon.hears("READY=1")
    connections = [socket.socket(socket.AF_UNIX) for _ in range(80)]
    try:
        for connection in connections:
            connection.connect(str(daemon.socket_path))
        closed = [connection for connection in connections if is_closed(connection)]
        assert len(closed) == 16  # what is above 64
        daemon.signal(signal.SIGTERM)
        assert daemon.ends()[0] == 0
    finally:
        for connection in connections:
            connection.close()


def is_closed(connection: socket.socket) -> bool:
    """Tells a connection that the server let go from one on which it answers the beginning of HTTP/2."""
    connection.settimeout(WAIT_S)
    try:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_a_certificate_that_cannot_be_read_exits_78(daemons: Any, tmp_path: Path) -> None:
    flags = ["--tls-cert", f"{tmp_path}/no.crt", "--tls-key", f"{tmp_path}/no.key"]
    code, lines = daemons("none", *flags).ends()
    assert code == 78
    assert lines[-1].startswith(f"sipd: tls_cert: {tmp_path}/no.crt: No such file or directory, wanted")


@pytest.mark.parametrize(
    ("address", "warning"),
    [
        ("0.0.0.0:0", "whoever reaches this machine may call: neither token_file nor tls_client_ca is set"),
        ("127.0.0.1:0", "tls_cert is set, but no address is on the network"),
    ],
)
def test_doors_that_may_be_open_by_mistake_are_warned_about(
    daemons: Any, tmp_path: Path, address: str, warning: str
) -> None:
    tls = make_tls_folder(tmp_path / "tls")
    daemon = daemons("none", *tls.flags(), "--listen", address)
    daemon.hears("READY=1")
    daemon.signal(signal.SIGTERM)
    code, lines = daemon.ends()
    assert code == 0
    assert any(warning in line for line in lines)


def test_the_watchdog_stays_silent_while_the_engine_makes_no_progress(daemons: Any) -> None:
    daemon = daemons("none")  # the fake's progress counter stands still
    told = daemon.hears("READY=1")
    daemon.signal(signal.SIGTERM)
    told += daemon.hears("STOPPING=1")
    assert sum("WATCHDOG=1" in message for message in told) <= 1
