"""Which tiles are pinned under a grant that falls and rises, and what happens when that cannot be had."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from sipd.config import Config
from sipd.engine.build import divide_budget, load_kernels
from sipd.engine.layout import Layout
from sipd.engine.pins import Pins
from sipd.errors import SipdError
from sipd.memory import Ledger, MemoryLimit
from sipd.models.program import Program
from sipd.models.registry import build_program
from sipd.models.small_tensors import read_f32
from sipd.weights.checkpoint import open_checkpoint
from sipd.weights.reader import WeightFiles
from sipd.weights.tensor_table import QuantType
from tests.builders import build_gguf

if TYPE_CHECKING:
    from sipd.models.forward import Forward
    from sipd.weights.stream import Stream, StreamShape


class Native:
    """In place of stream and forward: keeps the shapes that were taken over."""

    def __init__(self) -> None:
        self.shapes: list[StreamShape] = []
        self.n_repinned = 0
        self.fails = False

    def repin(self, shape: StreamShape) -> None:
        if self.fails:
            raise SipdError("no memory for a ring")
        self.shapes.append(shape)

    def repinned(self) -> None:
        self.n_repinned += 1


class Rig:
    """The pins of a layout, and the ledger that granted them."""

    def __init__(self, program: Program, layout: Layout) -> None:
        self.layout = layout
        self.native = Native()
        most = layout.stream.pin_bytes
        self.ledger = Ledger(most, 0, 0)
        self.grant = self.ledger.grant("pinned weights", most)
        self.pins = Pins(program, layout, cast("Stream", self.native), cast("Forward", self.native), self.grant)

    def pinned(self) -> frozenset[int]:
        """Extents that are pinned now."""
        shapes = self.native.shapes
        return frozenset((shapes[-1] if shapes else self.layout.stream).pin_offsets)


@pytest.fixture(params=[1_400_000, 1 << 26], ids=["partly", "wholly"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    model = build_gguf(tmp_path / "m.gguf", quant=QuantType.Q8_0, d_ff=2048)
    checkpoint, library = open_checkpoint(model), load_kernels("auto")
    files = WeightFiles(checkpoint.files, checkpoint.file_sizes, direct="off")
    program = build_program(checkpoint, lambda tensor: list(read_f32(library, files, tensor)))
    config = Config(threads=1, context=256, tile_bytes=4096, max_requests=2)
    yield Rig(program, divide_budget(library, program, config, request.param))
    files.close()


def test_fewer_bytes_pin_a_part_of_what_more_bytes_pin_and_the_same_on_the_way_up(rig: Rig) -> None:
    before = rig.grant.n_bytes
    down = [(before, rig.pinned())]
    while freed := rig.pins.give_back(30_000):
        assert rig.grant.n_bytes == down[-1][0] - freed
        down.append((rig.grant.n_bytes, rig.pinned()))
    assert len(down) > 3
    assert all(less < more for (_, more), (_, less) in pairwise(down))
    for n_bytes, pinned in down[-2::-1]:
        wanted = n_bytes - rig.grant.n_bytes
        assert rig.pins.take_back(wanted) == wanted
        assert rig.pinned() == pinned
    assert rig.native.shapes[-1] == rig.layout.stream
    assert (rig.grant.n_bytes, rig.pins.take_back(1 << 40)) == (before, 0)


def test_bytes_that_hold_no_further_tile_leave_the_stream_alone(rig: Rig) -> None:
    rig.pins.give_back(60_000)
    n_shapes = len(rig.native.shapes)
    assert rig.pins.take_back(100) == 0
    assert len(rig.native.shapes) == n_shapes == rig.native.n_repinned


def test_pins_come_back_where_they_were(rig: Rig) -> None:
    rig.pins.give_back(60_000)
    rig.pins.take_back(40_000)
    assert rig.native.shapes[-1].pin_offsets.items() < rig.layout.stream.pin_offsets.items()


def test_without_memory_for_another_ring_nothing_changes(rig: Rig) -> None:
    pinned, granted = rig.pins.pinned_bytes, rig.grant.n_bytes
    rig.native.fails = True
    assert rig.pins.give_back(60_000) == 0
    assert (rig.pins.pinned_bytes, rig.grant.n_bytes) == (pinned, granted)
    rig.native.fails = False
    assert rig.pins.give_back(60_000) >= 60_000
    low, granted = rig.pins.pinned_bytes, rig.grant.n_bytes
    rig.native.fails = True
    assert rig.pins.take_back(1 << 40) == 0
    assert (rig.pins.pinned_bytes, rig.grant.n_bytes) == (low, granted)


def test_nothing_is_taken_back_when_the_limit_has_fallen_again(rig: Rig) -> None:
    rig.pins.give_back(60_000)
    pinned, granted = rig.pins.pinned_bytes, rig.grant.n_bytes
    rig.ledger.relimit(MemoryLimit(granted, "cgroup v2"))
    assert rig.pins.take_back(60_000) == 0
    assert (rig.pins.pinned_bytes, rig.grant.n_bytes) == (pinned, granted)
