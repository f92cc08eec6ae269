from __future__ import annotations

import threading
from pathlib import Path

import pytest

from sipd.errors import BudgetError
from sipd.memory import Ledger, LimitChange, MemoryLimit, Term, default_margin_bytes, open_ledger, read_limit
from sipd.process_memory import read_process_memory
from tests.unit.test_cgroup import V2, machine

MIB = 1024**2


def ledger() -> Ledger:
    return Ledger(limit_bytes=100 * MIB, base_bytes=30 * MIB, margin_bytes=5 * MIB)


def test_what_remains_is_the_limit_without_base_margin_and_grants() -> None:
    book = ledger()
    book.grant("ring", 8 * MIB)
    assert book.remaining() == 57 * MIB


def test_a_released_grant_can_be_granted_again_and_released_twice() -> None:
    book = ledger()
    grant = book.grant("ring", 65 * MIB)
    grant.release()
    grant.release()
    assert book.remaining() == 65 * MIB


def test_the_table_sums_by_name_and_adds_up_to_the_limit() -> None:
    book = ledger()
    book.grant("kv cache", MIB)
    book.grant("kv cache", MIB)
    assert book.table() == [
        Term("process base", 30 * MIB),
        Term("margin", 5 * MIB),
        Term("kv cache", 2 * MIB),
        Term("free", 63 * MIB),
    ]


def test_what_does_not_fit_is_refused_with_every_term_the_largest_and_a_setting_that_fits() -> None:
    book = ledger()
    book.grant("ring", 8 * MIB)
    with pytest.raises(BudgetError) as caught:
        book.grant("kv cache", 80 * MIB, lambda remaining: f"--context {remaining // MIB}")
    assert str(caught.value) == (
        "budget of 100.0 MiB (budget) cannot hold kv cache of 80.0 MiB: largest term is kv cache; terms: kv cache "
        "80.0 MiB, process base 30.0 MiB, ring 8.0 MiB, margin 5.0 MiB; wanted --budget 123M or more, or --context 57"
    )
    assert book.remaining() == 57 * MIB


def test_the_suggested_budget_is_the_smallest_that_fits() -> None:
    with pytest.raises(BudgetError, match="--budget 101M"):
        ledger().grant("kv cache", 66 * MIB)
    Ledger(101 * MIB, 30 * MIB, 5 * MIB).grant("kv cache", 66 * MIB)


def test_several_terms_are_granted_together_or_not_at_all() -> None:
    book = ledger()
    with pytest.raises(BudgetError, match="wanted --budget 105M or more"):
        book.grant_all([Term("ring", 40 * MIB), Term("kv cache", 30 * MIB)])
    assert book.remaining() == 65 * MIB
    assert [grant.name for grant in book.grant_all([Term("ring", 40 * MIB), Term("kv cache", 25 * MIB)])] == [
        "ring",
        "kv cache",
    ]
    assert book.remaining() == 0


def test_exactly_what_remains_fits() -> None:
    ledger().grant("pinned", 65 * MIB)


def test_a_grant_that_cannot_grow_stays_as_it_was() -> None:
    book = ledger()
    grant = book.grant("kv cache", 10 * MIB)
    with pytest.raises(BudgetError, match="cannot hold kv cache"):
        grant.resize(66 * MIB)
    assert grant.n_bytes == 10 * MIB
    grant.resize(65 * MIB)
    assert book.remaining() == 0


def test_a_base_above_the_limit_refuses_any_grant_and_names_the_base() -> None:
    book = Ledger(20 * MIB, 30 * MIB, 5 * MIB)
    assert book.remaining() == 0
    with pytest.raises(BudgetError, match=r"largest term is process base.*--budget 36M"):
        book.grant("ring", MIB)


def test_many_threads_never_get_more_than_the_limit() -> None:
    book = ledger()
    granted: list[int] = []

    def work() -> None:
        for _ in range(50):
            try:
                book.grant("kv cache", MIB)
            except BudgetError:
                return
            granted.append(MIB)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(granted) == 65 * MIB == book.granted()


def test_the_budget_caps_the_cgroup(tmp_path: Path) -> None:
    proc = machine(tmp_path, "0::/a\n", [V2], {"cg/a/memory.max": str(300 * MIB)})
    assert (read_limit(100 * MIB, proc).n_bytes, read_limit(100 * MIB, proc).source) == (100 * MIB, "budget")


def test_the_cgroup_caps_the_budget(tmp_path: Path) -> None:
    proc = machine(tmp_path, "0::/a\n", [V2], {"cg/a/memory.max": str(300 * MIB)})
    assert (read_limit(400 * MIB, proc).n_bytes, read_limit(None, proc).source) == (300 * MIB, "cgroup v2")


def test_without_a_cgroup_limit_available_memory_counts_and_swap_does_not(tmp_path: Path) -> None:
    proc = machine(tmp_path, "0::/a\n", [V2], {"cg/a/memory.max": "max"})
    meminfo = "MemTotal: 900 kB\nMemFree: 10 kB\nMemAvailable: 400 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"
    (proc / "meminfo").write_text(meminfo)
    assert (read_limit(None, proc).n_bytes, read_limit(None, proc).source) == (400 * 1024, "MemAvailable")
    assert read_limit(100 * MIB, proc).n_bytes == 100 * MIB


def test_where_no_limit_can_be_read_the_budget_alone_counts(tmp_path: Path) -> None:
    proc = machine(tmp_path, "", [], {})
    assert read_limit(100 * MIB, proc).n_bytes == 100 * MIB
    with pytest.raises(BudgetError, match="wanted --budget SIZE"):
        read_limit(None, proc)


def test_a_real_ledger_starts_from_this_process() -> None:
    book = open_ledger(10 << 30)
    assert 0 < book.base_bytes <= 2 * read_process_memory().rss_anon
    assert book.margin_bytes == default_margin_bytes(book.limit_bytes)


def test_the_peak_covers_what_was_held_at_a_grant() -> None:
    book = ledger()
    block = bytearray(b"x" * (8 * MIB))
    before = book.sample_peak()
    del block
    assert book.sample_peak() >= before


def test_a_lowered_limit_leaves_the_grants_and_tells_what_is_too_much() -> None:
    book = ledger()
    pins = book.grant("pinned weights", 50 * MIB)
    shortfall = book.relimit(MemoryLimit(80 * MIB, "cgroup v2", 80 * MIB))
    assert (shortfall.limit_bytes, shortfall.needed_bytes, shortfall.n_bytes) == (80 * MIB, 85 * MIB, 5 * MIB)
    with pytest.raises(BudgetError, match=r"80\.0 MiB \(cgroup v2\)"):
        book.grant("ring", 1)
    pins.resize(45 * MIB)
    assert book.shortfall().n_bytes == 0


def test_a_raised_limit_ends_the_shortfall_and_grants_more() -> None:
    book = ledger()
    book.grant("pinned weights", 65 * MIB)
    assert book.relimit(MemoryLimit(80 * MIB, "cgroup v2")).n_bytes == 20 * MIB
    assert book.relimit(MemoryLimit(120 * MIB, "cgroup v2")).n_bytes == 0
    assert book.remaining() == 20 * MIB


def test_the_margin_follows_the_limit_and_comes_back_with_it() -> None:
    book = Ledger(512 * MIB, 30 * MIB, default_margin_bytes(512 * MIB))
    book.grant("pinned weights", book.remaining())
    assert book.relimit(MemoryLimit(256 * MIB, "cgroup v2")).n_bytes == (256 - 4) * MIB
    assert book.margin_bytes == default_margin_bytes(256 * MIB)
    assert book.relimit(MemoryLimit(512 * MIB, "cgroup v2")).n_bytes == 0


def test_program_files_need_room_once_the_cgroup_is_as_low_as_the_budget() -> None:
    book = ledger()
    book.file_bytes = 20 * MIB
    assert book.relimit(MemoryLimit(100 * MIB, "budget", 115 * MIB)).needed_bytes == 40 * MIB
    assert book.relimit(MemoryLimit(90 * MIB, "cgroup v2", 90 * MIB)).needed_bytes == 55 * MIB
    assert book.relimit(MemoryLimit(100 * MIB, "budget", 300 * MIB)).needed_bytes == 35 * MIB


def set_limit(folder: Path, text: str) -> None:
    (folder / "cg/a/memory.max").write_text(text + "\n")


def test_a_limit_that_moves_is_noticed_once(tmp_path: Path) -> None:
    proc = machine(tmp_path, "0::/a\n", [V2], {"cg/a/memory.max": str(400 * MIB)})
    watch = open_ledger(None, proc).watch
    assert watch is not None
    assert watch.look() is None
    set_limit(tmp_path, str(300 * MIB))
    before, now = (MemoryLimit(n * MIB, "cgroup v2", n * MIB) for n in (400, 300))
    assert watch.look() == LimitChange(before, now)
    assert watch.look() is None
    set_limit(tmp_path, str(500 * MIB))
    assert watch.look() == LimitChange(now, MemoryLimit(500 * MIB, "cgroup v2", 500 * MIB))
    assert watch.n_changes == 2


def test_the_configured_budget_stays_the_ceiling(tmp_path: Path) -> None:
    proc = machine(tmp_path, "0::/a\n", [V2], {"cg/a/memory.max": str(900 * MIB)})
    watch = open_ledger(400 * MIB, proc).watch
    assert watch is not None
    for text, n_mib, source in (("800", 400, "budget"), ("300", 300, "cgroup v2"), ("max", 400, "budget")):
        set_limit(tmp_path, text if text == "max" else str(int(text) * MIB))
        change = watch.look()
        assert change is not None
        assert (change.now.n_bytes, change.now.source) == (n_mib * MIB, source)
    assert watch.n_changes == 2


def test_a_limit_that_comes_where_there_was_none_is_noticed_and_its_end_too(tmp_path: Path) -> None:
    proc = machine(tmp_path, "0::/a\n", [V2], {"cg/a/memory.max": "max"})
    (proc / "meminfo").write_text("MemAvailable: 900000 kB\n")
    watch = open_ledger(None, proc).watch
    assert watch is not None
    set_limit(tmp_path, str(300 * MIB))
    change = watch.look()
    assert change is not None
    assert (change.before.source, change.now.n_bytes) == ("MemAvailable", 300 * MIB)
    set_limit(tmp_path, "max")
    assert watch.look() == LimitChange(change.now, change.before)
