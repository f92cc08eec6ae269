from __future__ import annotations

import logging
import re
import socket
import sys
import types
from pathlib import Path

import pytest

from sipd.engine.request import Usage
from sipd.process_memory import ProcessMemory
from sipd.server import journal
from sipd.server.journal import RequestJournal, RequestRecord, find_journal_send, logfmt, record_fields

USAGE = Usage(
    prompt_tokens=31,
    completion_tokens=48,
    cached_tokens=20,
    restored_tokens=16,
    drafted_tokens=9,
    accepted_tokens=7,
    passes=49,
    prefill_passes=1,
    streamed_bytes=4_000_000_000,
    head_bytes=30,
    embedding_bytes=20,
    kv_bytes=4096,
    queue_s=0.5,
    first_token_s=1.25,
    total_s=2.0,
    storage_wait_s=0.125,
)


def record(**changes: object) -> RequestRecord:
    values: dict[str, object] = {
        "request_id": "abc",
        "model": "tiny",
        "finish_reason": "stop",
        "usage": USAGE,
        "memory": ProcessMemory(100, 200, 400),
        "anonymous_peak": 150,
        "cgroup_current": 500,
        "cgroup_peak": 600,
        "client": "ip:192.168.1.20",
        "priority": "background",
        "session": "kitchen",
    }
    return RequestRecord(**(values | changes))  # type: ignore[arg-type]


def test_a_record_has_every_documented_field() -> None:
    assert record_fields(record()) == {
        "SIPD_REQUEST_ID": "abc",
        "SIPD_MODEL": "tiny",
        "SIPD_FINISH_REASON": "stop",
        "SIPD_CLIENT": "ip:192.168.1.20",
        "SIPD_PRIORITY": "background",
        "SIPD_SESSION": "kitchen",
        "SIPD_PROMPT_TOKENS": "31",
        "SIPD_COMPLETION_TOKENS": "48",
        "SIPD_CACHED_TOKENS": "20",
        "SIPD_RESTORED_TOKENS": "16",
        "SIPD_DRAFTED_TOKENS": "9",
        "SIPD_ACCEPTED_TOKENS": "7",
        "SIPD_PASSES": "49",
        "SIPD_PREFILL_PASSES": "1",
        "SIPD_STREAMED_BYTES": "4000000000",
        "SIPD_HEAD_BYTES": "30",
        "SIPD_EMBEDDING_BYTES": "20",
        "SIPD_KV_BYTES": "4096",
        "SIPD_QUEUE_S": "0.500000",
        "SIPD_FIRST_TOKEN_S": "1.250000",
        "SIPD_TOTAL_S": "2.000000",
        "SIPD_STORAGE_WAIT_S": "0.125000",
        "SIPD_RSS_ANON": "100",
        "SIPD_RSS_FILE": "200",
        "SIPD_RSS_PEAK": "400",
        "SIPD_RSS_ANON_PEAK": "150",
        "SIPD_CGROUP_CURRENT": "500",
        "SIPD_CGROUP_PEAK": "600",
    }


def test_what_is_not_known_is_left_out_rather_than_zero() -> None:
    fields = record_fields(record(cgroup_current=None, cgroup_peak=None, client="", priority="", session=""))
    assert not {"SIPD_CGROUP_CURRENT", "SIPD_CGROUP_PEAK", "SIPD_ERROR"} & fields.keys()
    assert not {"SIPD_CLIENT", "SIPD_PRIORITY", "SIPD_SESSION"} & fields.keys()


def test_a_journal_gets_one_entry_with_the_fixed_message_id() -> None:
    entries: list[dict[str, str]] = []
    RequestJournal(lambda message, **fields: entries.append({"MESSAGE": message, **fields})).write(record())
    assert len(entries) == 1
    assert entries[0]["MESSAGE_ID"] == journal.REQUEST_MESSAGE_ID
    assert entries[0]["SIPD_STREAMED_BYTES"] == "4000000000"


def test_the_message_id_is_a_128_bit_number() -> None:
    assert re.fullmatch("[0-9a-f]{32}", journal.REQUEST_MESSAGE_ID)


def test_without_a_journal_the_record_is_one_logfmt_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "sipd.request"):
        RequestJournal(None).write(record())
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("request request_id=abc model=tiny finish_reason=stop client=ip:192.168.1.20 ")


def test_a_journal_that_fails_is_replaced_by_stderr(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_message: str, **_fields: str) -> None:
        raise OSError("gone")

    with caplog.at_level(logging.INFO, "sipd.request"):
        RequestJournal(fail).write(record())
    assert caplog.messages[0].startswith("the journal cannot be written")
    assert caplog.messages[1].startswith("request request_id=abc")


def test_a_flood_of_refused_requests_leaves_room_for_all_else(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    sent: list[str] = []
    writer = RequestJournal(lambda _message, **fields: sent.append(fields["SIPD_FINISH_REASON"]), lambda: now)
    for _ in range(journal.MOST_REFUSED + 7):
        writer.write(record(finish_reason="refused"))
    writer.write(record())
    assert (sent.count("refused"), sent.count("stop")) == (journal.MOST_REFUSED, 1)
    now += journal.BURST_S
    with caplog.at_level(logging.INFO, "sipd.request"):
        writer.write(record(finish_reason="refused"))
    assert sent.count("refused") == journal.MOST_REFUSED + 1
    assert caplog.messages == ["7 more requests were refused in 30 s: they left no records"]


def test_odd_values_stay_on_one_quoted_line() -> None:
    assert logfmt({"SIPD_MODEL": 'a "b"\n=c', "SIPD_ERROR": ""}) == r'model="a \"b\"\n=c" error=""'


def test_without_a_journal_socket_there_is_no_sender(tmp_path: Path) -> None:
    assert find_journal_send(tmp_path / "socket") is None


def test_where_a_journal_listens_records_go_to_systemds_own_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("systemd.journal")
    module.send = print  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "systemd", types.ModuleType("systemd"))
    monkeypatch.setitem(sys.modules, "systemd.journal", module)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "socket"))
        assert find_journal_send(tmp_path / "socket") is print


def test_without_systemds_library_there_is_no_sender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "systemd.journal", None)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "socket"))
        assert find_journal_send(tmp_path / "socket") is None
