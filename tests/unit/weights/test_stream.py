"""The native stream: every extent in order, pass after pass, with the right bytes."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from sipd.weights.plan import choose_pinned
from sipd.weights.stream import shape_stream
from tests.unit.weights.stream_reader import EVERYTHING, plan_of, reading, write_weights

DEADLINE_S = 20.0


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weights(tmp_path_factory.mktemp("stream"))


@pytest.mark.parametrize("pin", [0, 60_000, EVERYTHING], ids=["streamed", "half", "pinned"])
@pytest.mark.parametrize("direct", ["off", "auto"])
@pytest.mark.parametrize(("n_slots", "n_readers"), [(1, 1), (2, 4), (3, 2), (8, 4), (64, 8)])
def test_every_pass_gets_every_extent_with_the_files_bytes(
    path: Path, pin: int, direct: str, n_slots: int, n_readers: int
) -> None:
    with reading(path, pin=pin, n_slots=n_slots, n_readers=n_readers, direct=direct) as reader:
        for _ in range(4):
            reader.walk()


def test_the_last_extent_may_end_in_the_middle_of_a_block_at_the_end_of_the_file(path: Path) -> None:
    with reading(path, direct="auto") as reader:
        last = max(reader.plan.extents, key=lambda extent: extent.offset)
        assert last.offset + last.length == path.stat().st_size
        assert path.stat().st_size % 512
        assert reader.plan.extents[0].offset % 64 == 32
        reader.walk()


def test_an_extent_of_many_tiles_may_be_asked_for_tile_by_tile(path: Path) -> None:
    with reading(path) as reader:
        for index, extent in enumerate(reader.plan.extents):
            for _ in range(3):
                assert reader.acquire(index) == reader.wanted(extent)
            reader.release(index)


def test_several_extents_may_be_held_at_once(path: Path) -> None:
    with reading(path, n_slots=4) as reader:
        held = [reader.acquire(index) for index in range(4)]
        assert held == [reader.wanted(extent) for extent in reader.plan.extents[:4]]
        assert reader.acquire(4, wait=False) is None
        for index in range(4):
            reader.release(index)
        assert reader.acquire(4) == reader.wanted(reader.plan.extents[4])


def test_a_rewind_starts_over_at_the_first_extent(path: Path) -> None:
    with reading(path, pin=60_000) as reader:
        for end in (0, 1, 2, 7, 20):
            reader.walk(end)
            reader.stream.rewind()
            reader.walk()


def test_a_rewind_in_the_middle_of_held_extents_starts_over(path: Path) -> None:
    with reading(path, n_slots=4) as reader:
        assert reader.acquire(0) is not None
        assert reader.acquire(1) is not None
        reader.stream.rewind()
        reader.walk()


def test_reads_go_on_over_the_end_of_a_pass(path: Path) -> None:
    with reading(path, n_slots=3) as reader:
        reader.walk()
        n_extents = len(reader.plan.extents)
        done = threading.Event()
        wanted = reader.plan.pass_bytes + sum(extent.length for extent in reader.plan.extents[:3])
        for _ in range(20_000):
            if reader.stream.counters().plan_bytes >= wanted:
                done.set()
                break
            os.sched_yield()
        assert done.is_set(), f"{n_extents} extents, {reader.stream.counters()}"


def test_counters_count_every_extent_once_a_pass_and_pins_once_at_all(path: Path) -> None:
    with reading(path, pin=60_000, n_slots=3) as reader:
        extents = reader.plan.extents
        pinned = choose_pinned(extents, 60_000)
        for _ in range(3):
            reader.walk()
        reader.stream._library.sipd_stream_rewind(reader.stream.handle)  # nothing is in flight for a moment
        found = reader.stream.counters().plan_bytes
        streamed = sum(extent.length for index, extent in enumerate(extents) if index not in pinned)
        kept = sum(extents[index].length for index in pinned)
        ahead = 2 * 3 * max(extent.length for extent in extents)
        assert 3 * streamed + kept <= found <= 3 * streamed + kept + ahead


@pytest.mark.parametrize("pin", [0, 60_000, 150_000, EVERYTHING], ids=["streamed", "third", "most", "pinned"])
@pytest.mark.parametrize(("n_slots", "n_readers"), [(1, 1), (2, 4), (3, 2), (8, 4), (200, 8)])
def test_passes_that_leave_out_the_end_get_the_files_bytes_and_so_do_the_others(
    path: Path, pin: int, n_slots: int, n_readers: int
) -> None:
    with reading(path, pin=pin, n_slots=n_slots, n_readers=n_readers) as reader:
        n_extents = len(reader.plan.extents)
        limits = [n_extents, n_extents - 9] + [n_extents - 9] * 2 + [n_extents] * 2 + [n_extents - 9, n_extents] * 3
        for limit in limits:
            reader.walk_to_limit(limit)
        reader.stream.rewind()
        for limit in reversed(limits):
            reader.walk_to_limit(limit)


def test_what_passes_leave_out_is_read_for_the_first_of_them_at_most(path: Path) -> None:
    with reading(path, n_slots=6, n_readers=2) as reader:
        extents = reader.plan.extents
        limit = len(extents) - 20
        used = sum(extent.length for extent in extents[:limit])
        for _ in range(5):
            reader.walk_to_limit(limit)
        ahead = 2 * 6 * max(extent.length for extent in extents)  # once by this, once by the rewind
        assert 5 * used <= reader.plan_bytes_at_rest() <= 5 * used + ahead


def test_a_ring_that_holds_more_than_a_pass_reads_what_is_left_out_once(path: Path) -> None:
    with reading(path, n_slots=200, n_readers=2) as reader:
        extents = reader.plan.extents
        limit = len(extents) - 20
        reader.walk(0)
        wanted = reader.plan.pass_bytes  # the ring is full before the first pass begins
        while reader.stream.counters().plan_bytes < 2 * wanted:
            os.sched_yield()
        before = reader.stream.counters().plan_bytes
        used, left_out = (sum(e.length for e in part) for part in (extents[:limit], extents[limit:]))
        for _ in range(12):
            reader.walk_to_limit(limit)
        n_read = reader.stream.counters().plan_bytes - before
        assert n_read <= 12 * used
        assert left_out > 0


def test_a_resident_plan_is_read_once(path: Path) -> None:
    with reading(path, pin=EVERYTHING) as reader:
        for _ in range(5):
            reader.walk()
        assert reader.stream.counters().plan_bytes == sum(extent.length for extent in reader.plan.extents)


def test_buffered_reads_move_no_byte_beyond_the_extents(path: Path) -> None:
    with reading(path, pin=EVERYTHING) as reader:
        reader.walk()
        counters = reader.stream.counters()
        assert counters.device_bytes == counters.plan_bytes
        assert counters.busy_s > 0


def test_direct_reads_move_whole_blocks(path: Path) -> None:
    with reading(path, pin=EVERYTHING, direct="auto") as reader:
        if not reader.stream.uses_direct_io:
            pytest.skip("direct reads do not work here")
        reader.walk()
        counters = reader.stream.counters()
        assert counters.plan_bytes <= counters.device_bytes <= sum(e.span_bytes for e in reader.plan.extents)
        assert counters.device_bytes % 512 == 0


def test_counters_can_be_read_from_other_threads_until_after_the_end(path: Path) -> None:
    with reading(path) as reader:
        is_ended = threading.Event()
        seen: list[int] = []

        def watch() -> None:
            while not is_ended.is_set():
                seen.append(reader.stream.counters().plan_bytes)

        thread = threading.Thread(target=watch)
        thread.start()
        for _ in range(20):
            reader.walk()
        last = reader.stream.counters().plan_bytes
        reader.stream.close()
        assert reader.stream.counters().plan_bytes >= last
        is_ended.set()
        thread.join(DEADLINE_S)
        assert seen == sorted(seen)


def test_a_stream_closes_while_it_reads_ahead(path: Path) -> None:
    for _ in range(20):
        with reading(path, n_slots=8, n_readers=8):
            pass


def test_a_wholly_pinned_plan_needs_no_ring(path: Path) -> None:
    plan = plan_of(path)
    shape = shape_stream(plan, frozenset(range(len(plan.extents))), 8, 2)
    assert shape.ring_bytes <= 4096 + shape.slack_bytes
    assert shape.pin_bytes == sum(extent.span_bytes for extent in plan.extents)
