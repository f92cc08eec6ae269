from __future__ import annotations

import errno
import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sipd.config import Config
from sipd.memory import Ledger
from sipd.process_memory import ProcessMemory
from sipd.server import monitor as monitor_module
from sipd.server.events import Events
from sipd.server.memory_watch import MemoryWatch
from sipd.server.monitor import Monitor
from sipd.server.notify import Notifier
from sipd.server.service_state import DaemonState, ServiceState
from tests.unit.server.fakes import FakeEngine, served_model


class Systemd:
    """The receiving end of NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.setblocking(False)

    def messages(self) -> list[str]:
        found = []
        while True:
            try:
                found.append(self.socket.recv(4096).decode())
            except BlockingIOError:
                return found


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    found = Systemd(str(tmp_path / "notify"))
    yield found
    found.socket.close()


@pytest.fixture
def notifier(systemd: Systemd, tmp_path: Path) -> Notifier:
    del systemd  # must be bound first
    return Notifier(str(tmp_path / "notify"))


def test_ready_stopping_and_status_carry_one_line(systemd: Systemd, notifier: Notifier) -> None:
    notifier.ready("serving\ntiny")
    notifier.status("busy")
    notifier.stopping("draining")
    assert systemd.messages() == ["READY=1\nSTATUS=serving tiny", "STATUS=busy", "STOPPING=1\nSTATUS=draining"]


def test_reloading_carries_the_monotonic_clock(systemd: Systemd, notifier: Notifier) -> None:
    before = time.monotonic_ns() // 1000
    notifier.reloading()
    first, second = systemd.messages()[0].split("\n")
    assert first == "RELOADING=1"
    assert before <= int(second.removeprefix("MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000


def test_a_longer_timeout_is_asked_for_in_microseconds(systemd: Systemd, notifier: Notifier) -> None:
    notifier.extend_timeout(20)
    assert systemd.messages() == ["EXTEND_TIMEOUT_USEC=20000000"]


def test_an_abstract_socket_is_reached(tmp_path: Path) -> None:
    receiver = Systemd(f"\0sipd-test-{tmp_path.name}-{id(tmp_path)}")
    try:
        Notifier(f"@sipd-test-{tmp_path.name}-{id(tmp_path)}").watchdog()
        assert receiver.messages() == ["WATCHDOG=1"]
    finally:
        receiver.socket.close()


@pytest.mark.parametrize("path", [None, "", "vsock:2:9999", "/nowhere/notify"])
def test_without_a_usable_socket_nothing_happens(path: str | None) -> None:
    Notifier(path).ready("serving")


def state_with(engine: FakeEngine) -> ServiceState:
    state = ServiceState(Config(), state=DaemonState.SERVING, served=served_model(engine))
    state.ledger = Ledger(448 << 20, 30 << 20, 4 << 20)
    return state


def test_the_watchdog_is_fed_only_while_the_engine_makes_progress(systemd: Systemd, notifier: Notifier) -> None:
    engine = FakeEngine()
    monitor = Monitor(state_with(engine), notifier, watchdog_s=10.0)
    for progress, is_fed in ((1, True), (2, True), (2, False), (2, False), (3, True)):
        engine.progress_count = progress
        assert monitor.tick()
        assert ("WATCHDOG=1" in systemd.messages()) is is_fed


def test_without_a_watchdog_none_is_fed(systemd: Systemd, notifier: Notifier) -> None:
    assert Monitor(state_with(FakeEngine(progress_count=5)), notifier, watchdog_s=None).tick()
    assert "WATCHDOG=1" not in systemd.messages()


def test_a_short_watchdog_shortens_the_tick(notifier: Notifier) -> None:
    assert Monitor(state_with(FakeEngine()), notifier, watchdog_s=0.9).interval_s == pytest.approx(0.3)


def test_a_disk_that_takes_no_snapshots_is_an_event_once_until_it_changes(notifier: Notifier) -> None:
    sent: list[tuple[str, str]] = []
    events = Events(lambda message, **fields: sent.append((fields["SIPD_EVENT"], message)))
    engine = FakeEngine()
    monitor = Monitor(state_with(engine), notifier, None, events)
    full, gone = ("/snapshots", "full"), ("/snapshots", "gone")
    for fault, n_sent in ((None, 0), (full, 1), (full, 1), (gone, 2), (None, 2), (full, 3)):
        engine.figures["snapshot_fault"] = fault
        assert monitor.tick()
        assert len(sent) == n_sent
    assert sent[0] == ("snapshot_failed", "snapshots cannot be written to /snapshots: full")


def test_a_dead_engine_is_reported_with_its_cause(systemd: Systemd, notifier: Notifier) -> None:
    state = state_with(FakeEngine(is_alive=False))
    assert not Monitor(state, notifier, watchdog_s=10.0).tick()
    assert state.last_error == "boom"
    assert systemd.messages() == []


def test_figures_that_cannot_be_read_for_a_while_stay_as_they_were_and_end_nothing(
    notifier: Notifier, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def read() -> ProcessMemory:
        if is_full:
            raise OSError(errno.EMFILE, "Too many open files")
        return ProcessMemory(200 << 20, 0, 0)

    is_full = False
    monkeypatch.setattr(monitor_module, "read_process_memory", read)
    state = state_with(FakeEngine())
    monitor = Monitor(state, notifier, None)
    before = monitor.line()
    is_full = True
    with caplog.at_level(logging.WARNING, "sipd.monitor"):
        assert monitor.tick()
        assert monitor.tick()
    assert "200/448 MiB" in before
    assert monitor.line() == before
    assert [record.message for record in caplog.records] == [
        "memory figures cannot be read: [Errno 24] Too many open files"
    ]


def test_limits_are_not_looked_at_while_nothing_can_be_read(
    notifier: Notifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> ProcessMemory:
        raise OSError(errno.EMFILE, "Too many open files")

    looks: list[None] = []
    monitor = Monitor(state_with(FakeEngine()), notifier, None)
    monkeypatch.setattr(MemoryWatch, "look", lambda _watch: looks.append(None))
    assert monitor.tick()
    monkeypatch.setattr(monitor_module, "read_process_memory", fail)
    assert monitor.tick()
    assert len(looks) == 1


def test_the_status_line_tells_requests_rate_and_memory(notifier: Notifier) -> None:
    line = Monitor(state_with(FakeEngine()), notifier, None).line()
    assert line.startswith("serving tiny, 0 active, 0 queued, 41 MB/s, ")
    assert line.endswith("/448 MiB")
