from __future__ import annotations

import ast
import logging
import re
from collections import Counter
from pathlib import Path

import pytest

from sipd.errors import ConfigError, DataLoss, StorageFault
from sipd.memory import MemoryLimit, Shortfall
from sipd.server import events
from sipd.server.events import KINDS, MESSAGE_IDS, EventKind, Events

MIB = 1024**2
PACKAGE = Path(events.__file__).parents[1]


class Journal:
    """Keeps what would be sent; fails when told to."""

    def __init__(self) -> None:
        self.sent: list[dict[str, str]] = []
        self.is_broken = False

    def send(self, message: str, **fields: str) -> None:
        if self.is_broken:
            raise OSError("gone")
        self.sent.append({"MESSAGE": message, **fields})


def write_all(writer: Events) -> None:
    writer.started("tiny", "unix:/run/sipd/s")
    writer.stopped(3.0)
    writer.engine_dead("boom")
    writer.storage(StorageFault("/m.gguf", 4096, "read failed with EIO"))
    writer.storage(DataLoss("/m.gguf", 4096, "the file ends early"))
    low, high = MemoryLimit(300 * MIB, "cgroup v2"), MemoryLimit(400 * MIB, "cgroup v2")
    writer.limit_changed(high, low, Shortfall(300 * MIB, 350 * MIB))
    writer.limit_changed(low, high, Shortfall(400 * MIB, 350 * MIB))
    writer.memory_shrunk(50 * MIB, Shortfall(300 * MIB, 300 * MIB))
    writer.limit_met(7, 600.0, 300 * MIB, 200 * MIB)
    writer.oom_kill(1, "/sys/fs/cgroup/system.slice")
    writer.request_refused("r1", "OVER_BUDGET", "too much", 1)
    writer.call_refused("ip:10.0.0.1", "INVALID_FIELD", "garbage", 1)
    writer.reloaded("the tokens")
    writer.reload_failed(ConfigError("token_file", "gone"))
    writer.snapshot_failed("/var/cache/sipd", "No space left on device")
    writer.clock_jumped(3600.0)


def test_every_kind_has_an_id_and_a_name_of_its_own() -> None:
    assert all(re.fullmatch("[0-9a-f]{32}", message_id) for message_id in MESSAGE_IDS.values())
    assert len(set(MESSAGE_IDS.values())) == len(MESSAGE_IDS) == len(KINDS) + 1


def test_every_kind_is_written_by_one_function() -> None:
    journal = Journal()
    write_all(Events(journal.send))
    assert Counter(each["SIPD_EVENT"] for each in journal.sent) == Counter(kind.name for kind in KINDS)
    assert all(each["MESSAGE_ID"] == MESSAGE_IDS[each["SIPD_EVENT"]] for each in journal.sent)


def test_a_path_that_is_no_utf_8_or_ends_a_line_is_one_line_that_the_journal_takes() -> None:
    journal = Journal()
    Events(journal.send).snapshot_failed("/cache/\udcff\nERROR", "gone")
    assert journal.sent[0]["MESSAGE"] == r"snapshots cannot be written to /cache/\udcff\nERROR: gone"
    assert journal.sent[0]["SIPD_PATH"] == "/cache/\\udcff\nERROR"


def callers(events_method: str) -> list[str]:
    """Returns the files of sipd/ that call a method of their `events` or `_events`."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == events_method:
                owner = node.func.value
                name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
                found += [path.name] * (name in {"events", "_events"})
    return found


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_is_written_by_somebody(kind: EventKind) -> None:
    names = {name for name, value in vars(events).items() if value is kind}
    writers = [
        function.name
        for function in ast.walk(ast.parse(Path(events.__file__).read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef)
        and any(isinstance(node, ast.Name) and node.id in names for node in ast.walk(function))
    ]
    assert writers
    assert [writer for writer in writers if not callers(writer)] == []


def test_a_lowered_limit_names_both_numbers_and_what_is_too_much() -> None:
    journal = Journal()
    before, now = MemoryLimit(400 * MIB, "budget"), MemoryLimit(300 * MIB, "cgroup v2")
    Events(journal.send).limit_changed(before, now, Shortfall(300 * MIB, 350 * MIB))
    (record,) = journal.sent
    assert record["MESSAGE"].startswith("the memory limit was lowered from 400.0 MiB to 300.0 MiB (cgroup v2): ")
    assert "350.0 MiB are granted, 50.0 MiB too much" in record["MESSAGE"]
    assert (record["SIPD_LIMIT_BEFORE"], record["SIPD_LIMIT"]) == (str(400 * MIB), str(300 * MIB))
    assert (record["SIPD_OVER"], record["PRIORITY"]) == (str(50 * MIB), "4")


def test_a_storage_fault_names_file_place_and_reason() -> None:
    journal = Journal()
    Events(journal.send).storage(StorageFault("/m.gguf", 4096, "read failed with EIO"))
    assert journal.sent[0]["MESSAGE"] == "storage failed: /m.gguf: at byte 4096: read failed with EIO"
    assert (journal.sent[0]["SIPD_PATH"], journal.sent[0]["SIPD_OFFSET"]) == ("/m.gguf", "4096")
    assert journal.sent[0]["SIPD_ERROR"] == "STORAGE_FAULT"


def test_without_a_journal_an_event_is_a_line_with_its_fields(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("sipd"), "propagate", True)
    with caplog.at_level(logging.INFO, "sipd.event"):
        Events(None).engine_dead("boom")
    assert caplog.messages == ["the engine is dead: boom (event=engine_dead cause=boom)"]
    assert caplog.records[0].levelno == logging.ERROR


def test_a_journal_that_fails_is_replaced_by_lines(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("sipd"), "propagate", True)
    journal = Journal()
    writer = Events(journal.send)
    journal.is_broken = True
    with caplog.at_level(logging.INFO, "sipd.event"):
        writer.stopped(1.0)
    journal.is_broken = False
    with caplog.at_level(logging.INFO, "sipd.event"):
        writer.stopped(2.0)
    assert journal.sent == []
    assert [message for message in caplog.messages if message.startswith("stopped")] == [
        "stopped (event=stopped uptime_s=1)",
        "stopped (event=stopped uptime_s=2)",
    ]
