"""A stream that pins less and all again: the right bytes, and memory that goes back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sipd.process_memory import read_anonymous_bytes
from sipd.weights.plan import choose_pinned
from sipd.weights.stream import StreamShape, shape_stream, shrink_shape
from tests.unit.weights.stream_reader import EVERYTHING, Reader, plan_of, reading, write_weights


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weights(tmp_path_factory.mktemp("stream"))


def first_shape(reader: Reader, pin: int, n_slots: int = 3) -> StreamShape:
    return shape_stream(reader.plan, choose_pinned(reader.plan.extents, pin), n_slots, 2)


@pytest.mark.parametrize("pin", [60_000, 150_000, EVERYTHING], ids=["third", "most", "pinned"])
@pytest.mark.parametrize("n_bytes", [1, 30_000, 100_000, EVERYTHING])
def test_a_stream_that_pins_less_and_all_again_gets_the_files_bytes(path: Path, pin: int, n_bytes: int) -> None:
    with reading(path, pin=pin) as reader:
        first = first_shape(reader, pin)
        smaller = shrink_shape(reader.plan, first, n_bytes, 3)
        for shape in (smaller, first, smaller):
            reader.walk()
            reader.stream.repin(shape)
            reader.walk()


def test_what_is_pinned_no_more_is_streamed_and_nothing_else_is(path: Path) -> None:
    with reading(path, pin=150_000, n_readers=1) as reader:
        reader.walk()
        smaller = shrink_shape(reader.plan, first_shape(reader, 150_000), 60_000, 3)
        reader.stream.repin(smaller)
        before = reader.plan_bytes_at_rest()
        for _ in range(3):
            reader.walk()
        found = reader.plan_bytes_at_rest() - before
        extents = reader.plan.extents
        streamed = sum(extent.length for index, extent in enumerate(extents) if index not in smaller.pin_offsets)
        ahead = 2 * 3 * max(extent.length for extent in extents)
        assert 3 * streamed - ahead <= found <= 3 * streamed + ahead
        assert 3 * ahead < streamed


def test_a_smaller_shape_pins_what_a_smaller_budget_would_have_pinned(path: Path) -> None:
    plan = plan_of(path)
    first = shape_stream(plan, choose_pinned(plan.extents, 150_000), 3, 2)
    smaller = shrink_shape(plan, first, 60_000, 3)
    assert smaller.pin_bytes <= first.pin_bytes - 60_000
    assert smaller.pin_offsets.items() <= first.pin_offsets.items()
    assert (smaller.n_slots, smaller.ring_bytes) == (first.n_slots, first.ring_bytes)
    assert shrink_shape(plan, first, EVERYTHING, 3).pin_bytes == 0


def test_a_resident_plan_that_gives_memory_back_pays_for_its_ring_and_keeps_what_it_must(path: Path) -> None:
    plan = plan_of(path)
    first = shape_stream(plan, frozenset(range(len(plan.extents))), 3, 2)
    smaller = shrink_shape(plan, first, 50_000, 3, frozenset({0, 1}))
    assert smaller.pin_bytes + smaller.ring_bytes <= first.pin_bytes + first.ring_bytes - 50_000
    assert smaller.slot_bytes == plan.largest_span
    assert {0, 1} <= smaller.pin_offsets.keys()
    assert shrink_shape(plan, first, EVERYTHING, 3, frozenset({0, 1})).pin_offsets.keys() == {0, 1}


def test_pages_of_what_is_pinned_no_more_go_back_to_the_kernel(tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    path.write_bytes(np.random.default_rng(1).bytes(24_000_000 + 32 * 7))
    with reading(path, pin=EVERYTHING, tile_bytes=1 << 20) as reader:
        reader.walk()
        before = read_anonymous_bytes()
        first = first_shape(reader, EVERYTHING)
        reader.stream.repin(shrink_shape(reader.plan, first, 12_000_000, 3))
        reader.stream.rewind()
        assert read_anonymous_bytes() <= before - 12_000_000 + 1_000_000


def mapped_kib(flag: str) -> int:
    """KiB of this process's mappings that have a flag of the kernel's, as in smaps."""
    total = size = 0
    for line in Path("/proc/self/smaps").read_text(encoding="ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name == "Size":
            size = int(value.split()[0])
        elif name == "VmFlags" and flag in value.split():
            total += size
    return total


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a kernel without huge pages")
def test_the_kernel_makes_no_huge_pages_where_pins_were_given_back(path: Path) -> None:
    with reading(path, pin=EVERYTHING) as reader:
        reader.walk()
        first = first_shape(reader, EVERYTHING)
        before = mapped_kib("nh")
        reader.stream.repin(first)
        assert mapped_kib("nh") == before
        reader.stream.repin(shrink_shape(reader.plan, first, 60_000, 3))
        assert mapped_kib("nh") >= before + first.pin_bytes // 1024
