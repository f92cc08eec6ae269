"""The tables of docs/operating.md say what the code says."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from sipd.engine.request import FinishReason
from sipd.server import events, journal
from sipd.server.journal import REQUEST_MESSAGE_ID
from tests.unit.document import rows, section, status_cells

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/operating.md").read_text(encoding="utf-8")


def test_every_reason_stands_there_with_its_status_or_exit_code() -> None:
    found = {row[0].strip("`"): row[1] for row in rows(section(TEXT, "Reasons"))}
    assert found == status_cells("exit ")


def fields(heading: str) -> dict[str, str]:
    """Returns field → unit of the table below a heading."""
    return {
        row[0].strip("`"): row[1]
        for row in rows(section(TEXT, heading))
        if row[0].startswith("`SIPD_") and len(row[0]) > 2
    }


def test_every_field_of_a_request_record_stands_there_in_order() -> None:
    names = re.findall(r'"(SIPD_\w+)":', Path(journal.__file__).read_text(encoding="utf-8"))
    assert list(fields("Records of requests")) == names


def test_every_field_of_an_event_stands_there() -> None:
    names = set(re.findall(r"\b(SIPD_\w+)=", Path(events.__file__).read_text(encoding="utf-8")))
    known = fields("Records of requests") | fields("Other events")
    assert names - known.keys() == set()


@pytest.mark.parametrize("heading", ["Records of requests", "Other events"])
def test_fields_have_the_unit_that_their_name_ends_with(heading: str) -> None:
    for name, unit in fields(heading).items():
        for ending, wanted in (("_S", "seconds"), ("_BYTES", "bytes"), ("_TOKENS", "tokens"), ("_PASSES", "passes")):
            assert not name.endswith(ending) or unit == wanted, name


def test_every_event_stands_there_with_its_id_and_level() -> None:
    wanted = {kind.name: (kind.message_id, logging.getLevelName(kind.level).lower()) for kind in events.KINDS}
    found = {
        row[0].strip("`"): (row[1].strip("`"), row[2])
        for row in rows(section(TEXT, "Other events"))
        if row[1].startswith("`8")
    }
    assert found == wanted


def test_every_finish_reason_stands_there() -> None:
    cell = next(row[2] for row in rows(section(TEXT, "Records of requests")) if row[0] == "`SIPD_FINISH_REASON`")
    assert set(re.findall(r"`(\w+)`", cell)) == {each.value for each in FinishReason} | {"refused"}


def test_the_message_id_of_the_records_is_the_codes() -> None:
    assert REQUEST_MESSAGE_ID in TEXT


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "systemd/drop-ins").glob("*.conf")))
def test_every_drop_in_is_mentioned(name: str) -> None:
    assert f"`{name}`" in TEXT


def test_the_seconds_of_the_example_table_are_bytes_by_rate() -> None:
    bytes_per_pass = float(re.findall(r"which (\d+) MB are streamed", TEXT)[0])
    table = re.findall(r"^\| [^|`]+ \| (\d+) \| ([\d.]+) \|$", TEXT, re.MULTILINE)
    assert len(table) == 4
    assert [f"{bytes_per_pass / float(rate):.1f}" for rate, _ in table] == [seconds for _, seconds in table]
