"""The probe at start: what it tries, what it chooses, and that it gives up on storage that is slow or fails."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from sipd.kernels import binding
from sipd.weights import probe
from sipd.weights.plan import Plan, build_plan
from sipd.weights.probe import DEFAULT_READERS, DEPTHS, ProbeResult, probe_storage
from sipd.weights.reader import WeightFiles
from sipd.weights.stream import shape_stream, stack_bytes
from sipd.weights.tensor_table import QuantType, Tensor

LIBRARY = binding.load_library()
READ_BYTES = 48 * 200  # three panels of rows of 50 floats


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "weights.bin"
    made.write_bytes(np.random.default_rng(0).bytes(400_000))
    return made


@contextmanager
def opened(path: Path) -> Iterator[tuple[Plan, WeightFiles]]:
    files = WeightFiles([path], [path.stat().st_size], direct="off")
    try:
        yield build_plan([[Tensor("m", (2000, 50), QuantType.F32, 0, 0, 400_000)]], 8192), files
    finally:
        files.close()


def probed(path: Path, n_slots: int) -> ProbeResult:
    with opened(path) as (plan, files):
        return probe_storage(LIBRARY, plan, files, shape_stream(plan, frozenset({0, 1}), n_slots, 1))


def test_every_depth_that_leaves_the_ring_room_is_tried(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "SLOW_FILL_S", 60.0)
    for n_slots, depths in ((3, (1, 2)), (6, (1, 2, 4)), (12, (1, 2, 4, 8))):
        result = probed(path, n_slots)
        assert tuple(depth for depth, _, _ in result.rates) == depths
        assert result.n_readers in depths
        assert all(rate > 0 for _, _, rate in result.rates)


def test_the_size_of_the_reads_is_that_of_the_plan(path: Path) -> None:
    with opened(path) as (plan, files):
        result = probe_storage(LIBRARY, plan, files, shape_stream(plan, frozenset(), 6, 1))
        assert result.read_size == max(extent.length for extent in plan.extents)
        assert {size for _, size, _ in result.rates} <= {result.read_size}


def test_slow_storage_is_not_probed_any_further(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "SLOW_FILL_S", 0.0)
    assert probed(path, 12) == ProbeResult((), DEFAULT_READERS, READ_BYTES)
    assert probed(path, 3) == ProbeResult((), 3, READ_BYTES)


def test_storage_that_fails_gives_the_default_and_no_error(path: Path) -> None:
    with opened(path) as (plan, files):
        os.truncate(path, 4096)
        assert probe_storage(LIBRARY, plan, files, shape_stream(plan, frozenset(), 6, 1)).n_readers == DEFAULT_READERS


def test_a_deeper_queue_must_pay_a_tenth() -> None:
    assert probe._choose({1: 100.0, 2: 109.0, 4: 115.0, 8: 124.0}) == 4
    assert probe._choose({1: 100.0, 2: 109.0, 4: 115.0, 8: 130.0}) == 8
    assert probe._choose({1: 100.0, 2: 109.0, 4: 90.0, 8: 109.0}) == 8, "fewer than four idle while readers wait"
    assert probe._choose({1: 100.0, 2: 180.0}) == 2, "a small ring has no room for more"
    assert probe._choose({1: 100.0}) == DEFAULT_READERS


def test_the_probe_leaves_no_thread_and_no_read_behind(path: Path) -> None:
    tasks = Path("/proc/self/task")
    before = len(list(tasks.iterdir()))
    probed(path, 12)
    assert len(list(tasks.iterdir())) == before


def test_the_margin_holds_the_stacks_of_every_depth_that_is_probed_and_of_no_more() -> None:
    assert stack_bytes(max(DEPTHS)) == 0
    assert stack_bytes(max(DEPTHS) + 1) > 0
