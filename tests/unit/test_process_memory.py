from __future__ import annotations

from pathlib import Path

import pytest

from sipd.process_memory import AnonymousPeak, read_anonymous_bytes, read_process_memory, return_free_memory


def test_the_figures_of_status_are_read_in_bytes(tmp_path: Path) -> None:
    (tmp_path / "status").write_text("Name:\tx\nVmHWM:\t  300 kB\nRssAnon:\t  100 kB\nRssFile:\t  50 kB\n")
    memory = read_process_memory(tmp_path)
    assert (memory.rss_anon, memory.rss_file, memory.rss_peak) == (100 * 1024, 50 * 1024, 300 * 1024)


def test_the_exact_figure_is_preferred_and_a_hidden_one_replaced(tmp_path: Path) -> None:
    (tmp_path / "status").write_text("RssAnon:\t  100 kB\n")
    assert read_anonymous_bytes(tmp_path) == 100 * 1024
    (tmp_path / "smaps_rollup").write_text("0-1 ---p 0 0 0 [rollup]\nRss: 1 kB\nAnonymous:   90 kB\n")
    assert read_anonymous_bytes(tmp_path) == 90 * 1024


def test_a_touched_buffer_is_seen_and_the_peak_remembers_it() -> None:
    return_free_memory()
    before, peak = read_anonymous_bytes(), AnonymousPeak()
    block = bytearray(b"x" * (64 << 20))
    assert read_anonymous_bytes() - before == pytest.approx(64 << 20, rel=0.1)
    highest = peak.sample()
    del block
    return_free_memory()
    assert read_anonymous_bytes() < highest - (32 << 20)
    assert peak.sample() == highest
