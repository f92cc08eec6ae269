"""The best rate at which the model's own file can be read: queue depth and read size probed with the native readers.

Invariant: a probe's buffers are granted by the ledger before they exist and given back after it; a probe that does
not fit is left out.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from statistics import median

from sipd.errors import BudgetError, StorageFault
from sipd.memory import Ledger
from sipd.weights.plan import PLACE, Extent, Plan
from sipd.weights.reader import WeightFiles
from sipd.weights.stream import Stream, StreamShape
from sipd.weights.tensor_table import Checkpoint

QUEUE_DEPTHS = (1, 2, 4, 8)
READ_BYTES = (256 * 1024, 1024**2, 4 * 1024**2)
PROBE_S = 0.25  # long enough for 10 MB from an SD card, and the sum of all probes stays below a few seconds
PROBE_BYTES = 256 * 1024**2
# The two best probes are repeated: the best of twelve single ones flatters
_FINALISTS, _CONFIRMATIONS = 2, 3
_READER_STACK_BYTES = 160 * 1024

Visit = Callable[[int, int], None]


def _leave(_address: int, _n_bytes: int) -> None:
    """Gives a read back unseen."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One probe: `queue_depth` reads of `read_bytes` in flight moved `n_bytes` in `seconds`."""

    queue_depth: int
    read_bytes: int
    n_bytes: int
    seconds: float

    @property
    def bytes_per_s(self) -> float:
        """The rate."""
        return self.n_bytes / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class StorageRate:
    """What the probes found. `is_direct` False: the rate is that of the page cache as well."""

    is_direct: bool
    best: Probe
    bytes_per_s: float  # median of the best one and its repetitions
    probes: tuple[Probe, ...]
    n_skipped: int  # probes whose buffers the budget cannot hold
    visited_bytes_per_s: float | None = None  # of the best one when every read is also visited


def measure_storage(
    library: ctypes.CDLL,
    checkpoint: Checkpoint,
    ledger: Ledger,
    direct: str,
    *,
    probe_bytes: int = PROBE_BYTES,
    probe_s: float = PROBE_S,
    advance: Callable[[int], None] = lambda _n_bytes: None,
    visit: Visit | None = None,
) -> StorageRate:
    """Returns the best rate; blocks for a few seconds. Raises BudgetError when not even the smallest probe fits.

    With `visit` the best probe runs a few times more, calling it with the address and length of every read: storage
    can be slower into memory that a processor has just loaded than into memory that nobody looks at (ADR 6).
    """
    prober = _Prober(library, checkpoint, ledger, direct, probe_bytes, probe_s)
    probes: list[Probe] = []
    n_skipped = 0
    for read_bytes in READ_BYTES:
        for queue_depth in QUEUE_DEPTHS:
            try:
                probes.append(prober.run(queue_depth, read_bytes))
                advance(probes[-1].n_bytes)
            except BudgetError:
                n_skipped += 1
                if n_skipped == len(READ_BYTES) * len(QUEUE_DEPTHS):
                    raise
    finalists = sorted(probes, key=lambda probe: -probe.bytes_per_s)[:_FINALISTS]
    confirmed = [(prober.confirm(probe), probe) for probe in finalists]
    rate, best = max(confirmed, key=lambda pair: pair[0])
    visited = prober.repeat(best, visit) if visit else None
    return StorageRate(prober.is_direct, best, rate, tuple(probes), n_skipped, visited)


def probe_extents(file_sizes: Sequence[int], read_bytes: int) -> tuple[Extent, ...]:
    """Reads of `read_bytes` that follow each other through the files; a file shorter than that is one read."""
    extents: list[Extent] = []
    for index, size in enumerate(file_sizes):
        step = min(read_bytes, size // PLACE * PLACE or size)
        extents += [Extent(index, at, step, step) for at in range(0, size - step + 1, step)]
    return tuple(extents)


@dataclass(slots=True)
class _Prober:
    """Runs probes over one checkpoint; `is_direct` is that of the latest one."""

    library: ctypes.CDLL
    checkpoint: Checkpoint
    ledger: Ledger
    direct: str
    most_bytes: int
    most_s: float
    is_direct: bool = False

    def run(self, queue_depth: int, read_bytes: int, visit: Visit = _leave) -> Probe:
        """One probe; raises BudgetError when its buffers do not fit."""
        extents = probe_extents(self.checkpoint.file_sizes, read_bytes)
        plan = Plan((), (), extents, ())
        # twice the depth: a read that ends late must not hold up the others
        ring = StreamShape(2 * queue_depth, queue_depth, plan.largest_span, PLACE, {}, 0)
        grant = self.ledger.grant("storage probe", ring.ring_bytes + PLACE + queue_depth * _READER_STACK_BYTES)
        try:
            files = WeightFiles(self.checkpoint.files, self.checkpoint.file_sizes, direct=self.direct)
            self.is_direct = files.uses_direct_io
            began = time.monotonic()
            stream = Stream(self.library, plan, files, ring, drop_cache=True)
            try:
                n_bytes = _drain(self.library, stream, extents, self.most_bytes, began + self.most_s, visit)
                return Probe(queue_depth, read_bytes, n_bytes, time.monotonic() - began)
            finally:
                stream.close()
        finally:
            grant.release()

    def confirm(self, probe: Probe) -> float:
        """The median rate of a probe and its repetitions."""
        return median(each.bytes_per_s for each in (probe, *self._again(probe, _leave)))

    def repeat(self, probe: Probe, visit: Visit) -> float:
        """The median rate of a probe's repetitions in which every read is visited."""
        return median(each.bytes_per_s for each in self._again(probe, visit))

    def _again(self, probe: Probe, visit: Visit) -> list[Probe]:
        return [self.run(probe.queue_depth, probe.read_bytes, visit) for _ in range(_CONFIRMATIONS)]


def _drain(  # noqa: PLR0917
    library: ctypes.CDLL, stream: Stream, extents: tuple[Extent, ...], n_bytes: int, until: float, visit: Visit
) -> int:
    """Takes reads as they come, until enough bytes or the end of the time; returns the bytes."""
    taken = 0
    for turn in count():
        index = turn % len(extents)
        address = library.sipd_stream_acquire(stream.handle, index, 1)
        if not address:
            raise _fault(stream)
        visit(address, extents[index].length)
        library.sipd_stream_release(stream.handle, index)
        taken += extents[index].length
        if taken >= n_bytes or time.monotonic() >= until:
            return taken
    raise AssertionError("count ends")


def _fault(stream: Stream) -> StorageFault:
    found = stream.fault()
    assert found is not None, "the stream stopped without a fault"
    return found[0]
