"""The tables of README.md say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from sipd.config import SETTINGS
from sipd.engine.request import FinishReason, Usage
from sipd.process_memory import ProcessMemory
from sipd.server.journal import REQUEST_MESSAGE_ID, RequestRecord, record_fields
from tests.unit.document import rows, section, status_cells

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_opens_with_the_two_commands() -> None:
    assert re.findall(r"^    (\S+)", README, re.MULTILINE)[:2] == ["scripts/demo", "scripts/test"]


def test_the_error_tables_hold_every_reason_with_its_status_or_exit_code() -> None:
    found = {row[0].strip("`"): row[1] for row in rows(section(README, "Errors"))}
    assert found == status_cells("")


def test_the_settings_table_holds_every_setting_in_order() -> None:
    assert [row[0].strip("`") for row in rows(section(README, "Settings"))] == list(SETTINGS)


def test_the_journal_table_holds_every_field_and_every_finish_reason() -> None:
    usage, memory = Usage(1), ProcessMemory(rss_anon=1, rss_file=1, rss_peak=1)
    record = RequestRecord(
        "id",
        "model",
        "stop",
        usage,
        memory,
        1,
        cgroup_current=1,
        cgroup_peak=1,
        error="X",
        client="c",
        priority="p",
        session="s",
    )
    assert re.findall(r"`(SIPD_\w+)`", section(README, "The journal")) == list(record_fields(record))
    reasons = next(row for row in rows(section(README, "The journal")) if "FINISH_REASON" in row[0])[1]
    assert set(re.findall(r"`(\w+)`", reasons)) == {each.value for each in FinishReason} | {"refused"}


def test_the_message_id_is_the_same_in_code_catalog_and_readme() -> None:
    assert REQUEST_MESSAGE_ID in section(README, "The journal")
    assert f"\n-- {REQUEST_MESSAGE_ID}\n" in (ROOT / "systemd/sipd.catalog").read_text(encoding="utf-8")


def test_the_example_configuration_names_known_settings_only() -> None:
    text = (ROOT / "systemd/sipd.toml").read_text(encoding="utf-8")
    assert set(re.findall(r"^(?:# )?(\w+) = ", text, re.MULTILINE)) <= set(SETTINGS)


def test_every_file_that_the_readme_shows_or_links_to_is_there() -> None:
    targets = re.findall(r"\]\(((?!https?:)[^)#]+)\)", README)
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []
