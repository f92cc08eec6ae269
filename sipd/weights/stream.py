"""The stream: reader threads and the ring that turn a plan into ready tiles, in order, ahead of compute.

Owned by the engine thread; the readers themselves are native (stream.c). Invariant: while a pass runs, every
descriptor it may read from is open.
"""

from __future__ import annotations

import ctypes
import errno
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from sipd.errors import DataLoss, SipdError, StorageFault
from sipd.kernels import binding
from sipd.weights.plan import PLACE, Plan, choose_pinned
from sipd.weights.reader import WeightFiles

_STACK_BYTES = 16 * 1024  # of a reader, whose thread was measured to use 8 KiB
_MARGIN_READERS = 8  # the stacks of as many as a probe may choose lie in the ledger's margin
# Errors that mean "this file system does not do direct reads after all"
_DIRECT_REFUSED = frozenset({errno.EINVAL, errno.ENOTSUP})


@dataclass(frozen=True, slots=True)
class StreamCounters:
    """Totals since the start: weight bytes read, bytes the reads moved, seconds with a read in flight."""

    plan_bytes: int
    device_bytes: int
    busy_s: float


@dataclass(frozen=True, slots=True)
class StreamShape:
    """Memory of a stream: ring slots and reader threads, and which extents are pinned where."""

    n_slots: int
    n_readers: int
    slot_bytes: int
    slack_bytes: int
    pin_offsets: dict[int, int]
    pin_bytes: int

    @property
    def ring_bytes(self) -> int:
        """Bytes of the ring."""
        return self.n_slots * self.slot_bytes + self.slack_bytes


def shape_stream(plan: Plan, pinned: frozenset[int], n_slots: int, n_readers: int) -> StreamShape:
    """The memory of a stream that pins `pinned`; a wholly pinned plan needs no ring."""
    # the kernels read whole panels: rows past a tile's end must be readable
    slack = 16 * max(tensor.row_bytes for tensor in plan.matrices)
    slack = -(-slack // PLACE) * PLACE
    offsets: dict[int, int] = {}
    at = 0
    for index, extent in enumerate(plan.extents):
        if index in pinned:
            offsets[index] = at
            at += extent.span_bytes
    is_resident = len(pinned) == len(plan.extents)
    slots = 1 if is_resident else n_slots
    slot_bytes = PLACE if is_resident else plan.largest_span
    return StreamShape(slots, n_readers, slot_bytes, slack, offsets, at)


def stack_bytes(n_readers: int) -> int:
    """Bytes of stacks that the ledger's margin does not hold."""
    return max(0, n_readers - _MARGIN_READERS) * _STACK_BYTES


def shrink_shape(
    plan: Plan, shape: StreamShape, n_bytes: int, n_slots: int, keep: frozenset[int] = frozenset()
) -> StreamShape:
    """The shape that gives `n_bytes` back by pinning less, or all that can be given back when that is less.

    What stays pinned is what a smaller budget would have pinned, at the same places; `keep` stays in any case (an
    embedding that the plan holds for its rows alone). A wholly pinned plan gets a ring of `n_slots` first.
    """
    kept_bytes = sum(plan.extents[index].span_bytes for index in keep)
    slots, slot_bytes = shape.n_slots, shape.slot_bytes
    if slot_bytes < plan.largest_span:
        slots, slot_bytes = n_slots, plan.largest_span
    grown = slots * slot_bytes + shape.slack_bytes - shape.ring_bytes
    room = max(0, shape.pin_bytes - n_bytes - grown - kept_bytes)
    candidates = [index for index in shape.pin_offsets if index not in keep]
    chosen = choose_pinned([plan.extents[index] for index in candidates], room)
    pinned = keep.intersection(shape.pin_offsets) | {candidates[index] for index in chosen}
    return replace(
        shape,
        n_slots=slots,
        slot_bytes=slot_bytes,
        pin_offsets={index: at for index, at in shape.pin_offsets.items() if index in pinned},
        pin_bytes=sum(plan.extents[index].span_bytes for index in pinned),
    )


class Stream:
    """The native stream over one checkpoint's files."""

    def __init__(
        self, library: ctypes.CDLL, plan: Plan, files: WeightFiles, shape: StreamShape, *, drop_cache: bool
    ) -> None:
        """Allocates the ring and starts the readers, which begin to read at once. Raises SipdError without memory."""
        self._library = library
        self._files = files
        self._n_extents = len(plan.extents)
        self._report: Callable[[str], None] = lambda _message: None
        self._closing = threading.Lock()  # held while `counters` looks at what `close` frees
        self._counters = StreamCounters(0, 0, 0.0)
        extents = (binding.Extent * len(plan.extents))(
            *(
                binding.Extent(
                    extent.file_index,
                    int(index in shape.pin_offsets),
                    extent.offset,
                    extent.length,
                    shape.pin_offsets.get(index, 0),
                )
                for index, extent in enumerate(plan.extents)
            )
        )
        config = binding.StreamConfig(
            n_extents=len(plan.extents),
            n_slots=shape.n_slots,
            n_readers=shape.n_readers,
            drop_cache=int(drop_cache),
            slot_bytes=shape.slot_bytes,
            slack=shape.slack_bytes,
            pin_bytes=shape.pin_bytes,
            alignment=files.alignment,
        )
        if len(files.fds) > binding.MAX_FILES:
            raise SipdError(f"{len(files.fds)} files in one checkpoint, sipd reads at most {binding.MAX_FILES}")
        self.handle = library.sipd_stream_create(ctypes.byref(config), extents)
        if not self.handle:
            raise SipdError(
                f"no memory for a ring of {shape.ring_bytes} and {shape.pin_bytes} pinned bytes, "
                f"or no thread for the first of {shape.n_readers} readers (a limit on processes, such as TasksMax)"
            )
        self._open()

    def _open(self) -> None:
        fds = (ctypes.c_int32 * len(self._files.fds))(*self._files.fds)
        self._library.sipd_stream_open(self.handle, fds, len(self._files.fds), self._files.alignment)
        self._files.close_stale()  # no read is in flight now

    @property
    def uses_direct_io(self) -> bool:
        """Whether reads bypass the page cache now."""
        return self._files.uses_direct_io

    def on_fallback(self, report: Callable[[str], None]) -> None:
        """`report` is called with one line when direct reads do not work: at once, or when that turns out."""
        self._report = report
        if self._files.fallback_reason:
            report(f"reading through the page cache: {self._files.fallback_reason}")

    def rewind(self) -> None:
        """Starts over at the first tile; what was read ahead is dropped, pinned tiles stay."""
        self._library.sipd_stream_rewind(self.handle)

    def repin(self, shape: StreamShape) -> None:
        """Takes over a shape of `shrink_shape`, or the first one again; between passes, before `Forward.repinned`.

        Raises SipdError without memory for its ring; nothing has changed then.
        """
        is_pinned = bytes(index in shape.pin_offsets for index in range(self._n_extents))
        if self._library.sipd_stream_repin(self.handle, is_pinned, shape.n_slots, shape.slot_bytes):
            raise SipdError(f"no memory for a ring of {shape.ring_bytes} bytes")

    def recover(self) -> None:
        """After a failed pass: reopens the files and starts over.

        Raises StorageFault or DataLoss when the files cannot be opened as they were.
        """
        self._files.reopen()
        self._open()

    def recover_from(self, fault: StorageFault, error_number: int) -> bool:
        """Whether the fault was direct I/O being refused, and reads are buffered from now on."""
        if error_number in _DIRECT_REFUSED and self._files.uses_direct_io:
            self._files.fall_back_to_buffered(str(fault))
            self._report(f"direct reads failed, reading through the page cache from now on: {fault}")
            self._open()
            return True
        return False

    def fault(self) -> tuple[StorageFault, int] | None:
        """The fault that stopped the readers and its errno (0: the file ended early), or None."""
        raw = binding.ReadFault()
        if not self._library.sipd_stream_fault(self.handle, ctypes.byref(raw)):
            return None
        path = str(self._files.paths[raw.file])
        wanted = f"wanted {raw.wanted} bytes, got {raw.got}"
        if raw.error_number == 0:
            return DataLoss(path, raw.offset, f"the file ends early: {wanted}"), 0
        name = errno.errorcode.get(raw.error_number, str(raw.error_number))
        return StorageFault(path, raw.offset, f"read failed with {name}: {wanted}"), raw.error_number

    def check_files(self) -> None:
        """Raises DataLoss when a file has changed since it was loaded."""
        self._files.check()

    def counters(self) -> StreamCounters:
        """Totals of the readers; may be called from any thread, and after `close`."""
        with self._closing:
            if self.handle:
                raw = binding.StreamCounters()
                self._library.sipd_stream_read_counters(self.handle, ctypes.byref(raw))
                self._counters = StreamCounters(raw.plan_bytes, raw.device_bytes, raw.busy_ns / 1e9)
            return self._counters

    def stop(self) -> None:
        """Stops the readers and frees the ring; the files stay open."""
        self.counters()
        with self._closing:
            if self.handle:
                self._library.sipd_stream_destroy(self.handle)
                self.handle = None

    def close(self) -> None:
        """Stops the readers, frees the ring and closes the files."""
        self.stop()
        self._files.close()
