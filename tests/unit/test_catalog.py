"""The journal's catalogue has an entry for every event that the daemon writes, and names only fields that there are."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sipd.engine.request import Usage
from sipd.process_memory import ProcessMemory
from sipd.server import events
from sipd.server.journal import REQUEST_MESSAGE_ID, RequestJournal, RequestRecord, record_fields

ROOT = Path(__file__).parents[2]
CATALOG = ROOT / "systemd/sipd.catalog"
JOURNALD_BURST = 10_000  # RateLimitBurst= of journald.conf(5), messages of one service in 30 s
RECORD = RequestRecord(
    request_id="id",
    model="model",
    finish_reason="stop",
    usage=Usage(1),
    memory=ProcessMemory(rss_anon=1, rss_file=1, rss_peak=1),
    anonymous_peak=1,
    cgroup_current=1,
    cgroup_peak=1,
)


def entries() -> dict[str, str]:
    """Returns MESSAGE_ID → text of the catalogue."""
    parts = re.split(r"^-- ([0-9a-f]{32})$", CATALOG.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def fields_of(text: str) -> set[str]:
    """Returns the names between @ and @."""
    return set(re.findall(r"@(\w+)@", text))


def event_fields() -> dict[str, set[str]]:
    """Returns MESSAGE_ID → the fields that the event's function writes, read from its source."""
    kinds = {name: value for name, value in vars(events).items() if isinstance(value, events.EventKind)}
    found: dict[str, set[str]] = {}
    for function in ast.walk(ast.parse(Path(events.__file__).read_text(encoding="utf-8"))):
        if isinstance(function, ast.FunctionDef):
            nodes = list(ast.walk(function))
            names = {node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg is not None}
            for node in nodes:
                if isinstance(node, ast.Name) and node.id in kinds:
                    found[kinds[node.id].message_id] = {name for name in names if name.startswith("SIPD_")}
    return found


def test_every_message_id_has_an_entry_and_every_entry_a_message_id() -> None:
    sources = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "sipd").rglob("*.py"))]
    written = {found for text in sources for found in re.findall(r'"([0-9a-f]{32})"', text)}
    assert entries().keys() == written
    assert set(events.MESSAGE_IDS.values()) == written


def test_every_entry_begins_with_a_subject_and_goes_on_with_an_explanation() -> None:
    for message_id, text in entries().items():
        assert re.match(r"\nSubject: \S.*\nDefined-By: sipd\nDocumentation: \S+\n\n\S", text), message_id


def test_no_id_has_two_entries() -> None:
    ids = re.findall(r"^-- ([0-9a-f]{32})$", CATALOG.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(ids) == len(set(ids))


def test_the_entry_of_a_request_names_fields_of_its_record() -> None:
    fields = fields_of(entries()[REQUEST_MESSAGE_ID])
    assert fields
    assert fields <= record_fields(RECORD).keys()


@pytest.mark.parametrize("kind", events.KINDS, ids=lambda kind: kind.name)
def test_the_entry_of_an_event_names_fields_of_that_event(kind: events.EventKind) -> None:
    assert fields_of(entries()[kind.message_id]) - event_fields()[kind.message_id] == set()


def test_journalctl_compiles_the_catalogue(tmp_path: Path) -> None:
    command = shutil.which("journalctl")
    if command is None:
        pytest.skip("journalctl is not installed")
    folder = tmp_path / "usr/lib/systemd/catalog"
    folder.mkdir(parents=True)
    (tmp_path / "var/lib/systemd/catalog").mkdir(parents=True)
    shutil.copy(CATALOG, folder)
    subprocess.run([command, f"--root={tmp_path}", "--update-catalog"], check=True, capture_output=True, timeout=60)
    done = subprocess.run(
        [command, f"--root={tmp_path}", "--list-catalog"], check=True, capture_output=True, text=True, timeout=60
    )
    assert {line.split()[0] for line in done.stdout.splitlines()} == entries().keys()


def test_a_thousand_requests_are_a_tenth_of_what_journald_takes(caplog: pytest.LogCaptureFixture) -> None:
    sent: list[str] = []
    journal = RequestJournal(lambda message, **_fields: sent.append(message))
    with caplog.at_level("DEBUG"):
        for _ in range(1000):
            journal.write(RECORD)
    assert len(sent) + len(caplog.records) <= JOURNALD_BURST / 10
