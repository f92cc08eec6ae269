"""Finds how many reads in flight the storage wants, by filling the ring of the real plan with more and more readers.

Invariant: it uses the ring that the ledger granted and no other memory. On storage that fills the ring within
SLOW_FILL_S it tries every depth; on slower storage, where reads in flight matter less than bytes, it stops after the
first. For direct reads only: buffered ones would measure the page cache.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import replace

from sipd.weights.plan import Plan
from sipd.weights.reader import WeightFiles
from sipd.weights.stream import Stream, StreamShape

DEPTHS = (1, 2, 4, 8)
DEFAULT_READERS = 4  # enough for SD cards, USB disks and NVMe alike where nothing can be measured
SLOW_FILL_S = 0.06  # a ring that takes longer to fill is on storage where more probing costs more than it gives
WORTH = 1.1  # deeper queues cost threads: they must pay at least a tenth
_POLL_S = 0.0005
_PATIENCE_S = 5.0  # for storage that does not answer: its fault shows in the first pass


def probe_readers(
    library: ctypes.CDLL, plan: Plan, files: WeightFiles, shape: StreamShape
) -> tuple[int, dict[int, float]]:
    """Readers to use, and bytes per second by number of readers. Blocks while it reads; raises what Stream raises."""
    rates: dict[int, float] = {}
    for depth in DEPTHS:
        if depth > max(2, shape.n_slots - 2):  # one slot is computed from, one is next
            break
        began = time.monotonic()
        rate = _fill_rate(library, plan, files, replace(shape, n_readers=depth, pin_offsets={}, pin_bytes=0))
        if not rate:
            break
        rates[depth] = rate
        if time.monotonic() - began > SLOW_FILL_S:
            break
    chosen = DEFAULT_READERS
    if len(rates) > 1:
        chosen = 1
        for depth, rate in rates.items():
            if rate > WORTH * rates[chosen]:
                chosen = depth
    return min(chosen, shape.n_slots), rates


def _fill_rate(library: ctypes.CDLL, plan: Plan, files: WeightFiles, shape: StreamShape) -> float:
    """Bytes per second of one fill of the ring; 0 when the storage fails or takes too long."""
    wanted = sum(extent.length for extent in plan.extents[: shape.n_slots])
    stream = Stream(library, plan, files, shape, drop_cache=False)
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while stream.counters().plan_bytes < wanted:
            if stream.fault() is not None or time.monotonic() > deadline:
                return 0.0
            time.sleep(_POLL_S)
        return wanted / stream.counters().busy_s
    finally:
        stream.stop()
