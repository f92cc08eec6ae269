"""Finds how many reads in flight the storage wants, by draining the ring of the real plan with more and more of them.

Invariant: it uses the ring that the ledger granted and no other memory. On storage that fills the ring within
SLOW_FILL_S it tries every depth; on slower storage, where reads in flight matter less than bytes, it stops after the
first fill. For direct reads only: buffered ones would measure the page cache.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass, replace
from itertools import count

from sipd.weights.plan import Plan
from sipd.weights.reader import WeightFiles
from sipd.weights.stream import Stream, StreamShape

DEPTHS = (1, 2, 4, 8)
DEFAULT_READERS = 4  # enough for SD cards, USB disks and NVMe alike where nothing can be measured
SLOW_FILL_S = 0.06  # a ring that takes longer to fill is on storage where more probing costs more than it gives
WORTH = 1.1  # deeper queues cost threads: they must pay at least a tenth
RING_TURNS = 2  # of reads by which one depth is measured: tens of MB on fast storage
_POLL_S = 0.0001
_PATIENCE_S = 5.0  # for storage that does not answer: its fault shows in the first pass


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What was tried, as (reads in flight, bytes of the largest read, bytes per second), and what was chosen.

    Reads are as large as the plan's extents: on storage fast enough for a probe their size makes no difference.
    """

    rates: tuple[tuple[int, int, float], ...] = ()
    n_readers: int = 0
    read_size: int = 0


def probe_storage(library: ctypes.CDLL, plan: Plan, files: WeightFiles, shape: StreamShape) -> ProbeResult:
    """What this storage wants. Blocks while it reads, for a tenth of a second or so; raises what Stream raises."""
    read_size = max(extent.length for extent in plan.extents)
    # one slot is computed from, one is next
    depths = [depth for depth in DEPTHS if depth <= max(2, shape.n_slots - 2)]
    drain = _Drain(library, plan, files, replace(shape, n_readers=depths[-1], pin_offsets={}, pin_bytes=0))
    rates: dict[int, float] = {}
    try:
        seconds = drain.run(depths[0], shape.n_slots)  # also brings the ring's pages, which the measured reads find
        if seconds is not None and seconds <= SLOW_FILL_S:
            for depth in depths:
                rate = drain.rate(depth, RING_TURNS * shape.n_slots)
                if rate is None:
                    break
                rates[depth] = rate
    finally:
        drain.close()
    tried = tuple((depth, read_size, rate) for depth, rate in rates.items())
    return ProbeResult(tried, min(_choose(rates), shape.n_slots), read_size)


def _choose(rates: dict[int, float]) -> int:
    """The smallest depth that no deeper one beats by what it would cost, but four where the ring has room for them.

    Beside compute a reader waits for a processor now and then, which nothing else shows while the daemon starts: the
    reads that are in flight meanwhile keep the storage at work.
    """
    if len(rates) < 2:
        return DEFAULT_READERS
    enough = [depth for depth in rates if depth >= DEFAULT_READERS] or [max(rates)]
    chosen = enough[0]
    for depth in enough:
        if rates[depth] > WORTH * rates[chosen]:
            chosen = depth
    return chosen


class _Drain:
    """A stream of the plan whose extents are given back as they come."""

    def __init__(self, library: ctypes.CDLL, plan: Plan, files: WeightFiles, shape: StreamShape) -> None:
        self._library = library
        self._extents = plan.extents
        self._next = 0
        self._stream = Stream(library, plan, files, shape, drop_cache=False)

    def rate(self, depth: int, n_extents: int) -> float | None:
        """Bytes per second of the next extents with `depth` reads in flight; None without an answer."""
        first = self._next
        seconds = self.run(depth, n_extents)
        if not seconds:
            return None
        return sum(self._extents[i % len(self._extents)].length for i in range(first, self._next)) / seconds

    def run(self, depth: int, n_extents: int) -> float | None:
        """Seconds until the next extents are here; None when the storage fails or takes too long."""
        self._library.sipd_stream_set_depth(self._stream.handle, depth)
        began = time.monotonic()
        for number in count(self._next):
            if number == self._next + n_extents:
                break
            extent = number % len(self._extents)
            while not self._library.sipd_stream_acquire(self._stream.handle, extent, 0):
                if self._stream.fault() is not None or time.monotonic() > began + _PATIENCE_S:
                    return None
                time.sleep(_POLL_S)
            self._library.sipd_stream_release(self._stream.handle, extent)
        self._next += n_extents
        return time.monotonic() - began

    def close(self) -> None:
        """Ends the readers and frees the ring."""
        self._stream.stop()
