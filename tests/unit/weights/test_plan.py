"""The plan: tiles cover every row once and in order, reads are merged, and pins are nested."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sipd.weights.plan import (
    MERGE_GAP,
    PANEL_ROWS,
    PLACE,
    TILE_BYTES,
    Extent,
    Plan,
    build_plan,
    choose_pinned,
    pin_order,
)
from sipd.weights.tensor_table import QuantType, Tensor
from tests.checkpoints import SMOLLM2, SMOLLM2_TYPES, gguf_table, program_of


def tensor(name: str, n_out: int, n_in: int, offset: int, *, file_index: int = 0) -> Tensor:
    return Tensor(name, (n_out, n_in), QuantType.F32, file_index, offset, 4 * n_out * n_in)


def row_of(*shapes: tuple[int, int], gap: int = 0, first: int = 32) -> list[Tensor]:
    """Matrices one after another in a file."""
    found: list[Tensor] = []
    at = first
    for index, (n_out, n_in) in enumerate(shapes):
        found.append(tensor(f"m{index}", n_out, n_in, at))
        at += found[-1].n_bytes + gap
    return found


def check(plan: Plan, groups: list[list[Tensor]], tile_bytes: int) -> None:
    """Holds a plan to its invariants."""
    assert plan.matrices == tuple(matrix for group in groups for matrix in group)
    by_matrix: dict[int, list[tuple[int, int]]] = {}
    for tile in plan.tiles:
        matrix, extent = plan.matrices[tile.matrix], plan.extents[tile.extent]
        by_matrix.setdefault(tile.matrix, []).append((tile.row0, tile.n_rows))
        assert extent.file_index == matrix.file_index
        assert extent.offset + tile.offset == matrix.file_offset + tile.row0 * matrix.row_bytes
        assert tile.offset >= 0
        assert tile.offset + tile.n_rows * matrix.row_bytes <= extent.length
        assert tile.row0 % PANEL_ROWS == 0
    for index, matrix in enumerate(plan.matrices):
        at = 0
        for row0, n_rows in by_matrix[index]:
            assert row0 == at
            at += n_rows
        assert at == matrix.shape[0]
    assert [tile.extent for tile in plan.tiles] == sorted(tile.extent for tile in plan.tiles)
    assert {tile.extent for tile in plan.tiles} == set(range(len(plan.extents)))
    assert [tile.matrix for tile in plan.tiles] == sorted(tile.matrix for tile in plan.tiles)
    assert plan.group_tiles[0][0] == 0
    assert plan.group_tiles[-1][1] == len(plan.tiles)
    assert all(before[1] == after[0] for before, after in pairwise(plan.group_tiles))
    assert plan.pass_bytes == sum(matrix.n_bytes for matrix in plan.matrices)
    for extent in plan.extents:
        assert 0 < extent.weight_bytes <= extent.length
        least = max(PANEL_ROWS * matrix.row_bytes for matrix in plan.matrices)
        assert extent.weight_bytes <= max(tile_bytes + tile_bytes // 4, least)
        assert extent.span_bytes % PLACE == 0
        assert plan.largest_span >= extent.span_bytes >= extent.length


def test_the_plan_of_a_whole_model_reads_every_weight_once() -> None:
    program = program_of(gguf_table(SMOLLM2, quant=QuantType.Q4_1, quant_by_role=SMOLLM2_TYPES))
    groups = [[product.weight for product in step.products] for step in program.product_steps()]
    plan = build_plan(groups)
    check(plan, groups, TILE_BYTES)
    assert len(plan.group_tiles) == 4 * 30 + 1
    assert sum(extent.length for extent in plan.extents) < plan.pass_bytes * 1.01


@settings(max_examples=80, deadline=None)
@given(
    shapes=st.lists(st.tuples(st.integers(1, 300), st.integers(1, 64)), min_size=1, max_size=10),
    cuts=st.lists(st.integers(1, 3), min_size=1, max_size=10),
    order=st.randoms(use_true_random=False),
    gap=st.sampled_from([0, 32, 4064, 4096, 4128, 100_000]),
    tile_bytes=st.sampled_from([1, 512, 4096, 20_000, 1 << 20]),
    n_files=st.integers(1, 3),
)
def test_any_layout_of_any_matrices_gives_a_sound_plan(  # noqa: PLR0917 - what hypothesis draws
    shapes: list[tuple[int, int]], cuts: list[int], order: object, gap: int, tile_bytes: int, n_files: int
) -> None:
    placed = row_of(*shapes, gap=gap)
    placed = [replace(each, file_index=index % n_files) for index, each in enumerate(placed)]
    order.shuffle(placed)  # type: ignore[attr-defined]
    groups: list[list[Tensor]] = []
    for size in cuts * 10:
        if placed:
            groups.append(placed[:size])
            placed = placed[size:]
    check(build_plan(groups, tile_bytes), groups, tile_bytes)


def test_neighbours_in_the_file_are_read_together() -> None:
    plan = build_plan([row_of((64, 64), (32, 64), (32, 64))])
    assert len(plan.extents) == 1
    assert len(plan.tiles) == 3


def test_neighbours_are_read_together_whatever_their_order_in_the_file() -> None:
    first, second, third = row_of((64, 64), (32, 64), (32, 64))
    plan = build_plan([[third, first, second]])
    assert len(plan.extents) == 1
    assert [tile.offset for tile in plan.tiles] == [24576, 0, 16384]


@pytest.mark.parametrize(("gap", "n_extents"), [(0, 1), (MERGE_GAP, 1), (MERGE_GAP + 1, 2)])
def test_a_gap_is_read_over_when_that_is_cheaper_than_a_second_read(gap: int, n_extents: int) -> None:
    assert len(build_plan([row_of((32, 64), (32, 64), gap=gap)]).extents) == n_extents


def test_reads_of_different_files_are_never_merged() -> None:
    plan = build_plan([[tensor("a", 32, 64, 32), tensor("b", 32, 64, 32 + 8192, file_index=1)]])
    assert [extent.file_index for extent in plan.extents] == [0, 1]


def test_a_matrix_is_cut_into_even_tiles_of_whole_panels() -> None:
    plan = build_plan([row_of((1000, 1024))], 1 << 20)
    assert [tile.n_rows for tile in plan.tiles] == [256, 256, 256, 232]


def test_a_row_wider_than_a_tile_still_comes_in_whole_panels() -> None:
    plan = build_plan([row_of((40, 4096))], 1024)
    assert [tile.n_rows for tile in plan.tiles] == [16, 16, 8]


def test_the_span_of_a_read_covers_whole_blocks() -> None:
    assert Extent(0, 0, 4096, 4096).span_bytes == 4096
    assert Extent(0, 4095, 2, 2).span_bytes == 8192
    assert Extent(0, 32, 1, 1).span_bytes == 4096


def extents_of(*sizes: int) -> list[Extent]:
    found: list[Extent] = []
    at = 0
    for size in sizes:
        found.append(Extent(0, at, size, size))
        at += -(-size // PLACE) * PLACE
    return found


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(1, 100_000), min_size=1, max_size=80), data=st.data())
def test_more_room_never_pins_less(sizes: list[int], data: st.DataObject) -> None:
    extents = extents_of(*sizes)
    total = sum(extent.span_bytes for extent in extents)
    low = data.draw(st.integers(0, total))
    high = data.draw(st.integers(low, total))
    fewer, more = choose_pinned(extents, low), choose_pinned(extents, high)
    assert fewer <= more
    assert sum(extents[index].span_bytes for index in more) <= high
    assert choose_pinned(extents, total) == frozenset(range(len(extents)))
    assert choose_pinned(extents, 0) == frozenset()


def test_the_order_of_pins_names_every_extent_once() -> None:
    assert sorted(pin_order(extents_of(*[4096] * 37))) == list(range(37))
    assert pin_order([]) == []


@pytest.mark.parametrize("n_pinned", [4, 8, 16, 32])
def test_pins_are_spread_evenly_over_the_pass(n_pinned: int) -> None:
    pinned = sorted(pin_order(extents_of(*[4096] * 64))[:n_pinned])
    gaps = [after - before for before, after in pairwise(pinned)]
    assert max(gaps) <= 2 * 64 // n_pinned
