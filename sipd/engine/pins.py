"""Which tiles stay in memory, and the grant for them: gives memory back when the limit was lowered.

Owned by the engine thread. Invariant: the grant is what the pinned tiles and a grown ring take, at any moment.
"""

from __future__ import annotations

from sipd.engine.layout import MIN_SLOTS, Layout
from sipd.memory import Grant
from sipd.models.forward import Forward
from sipd.models.program import Program
from sipd.weights.stream import Stream, shrink_shape


class Pins:
    """The pinned tiles of one model, from what the layout gave it downwards."""

    def __init__(self, program: Program, layout: Layout, stream: Stream, forward: Forward, grant: Grant) -> None:
        self._plan = layout.plan
        self._shape = layout.stream
        self._ring_bytes = layout.stream.ring_bytes
        self._stream = stream
        self._forward = forward
        self._grant = grant
        self._keep: frozenset[int] = frozenset()
        if not program.is_tied and len(self._plan.group_tiles) > sum(1 for _ in program.product_steps()):
            # the embedding's own tiles: streamed they would cost every pass the whole embedding
            self._keep = frozenset(tile.extent for tile in self._plan.tiles[slice(*self._plan.group_tiles[0])])

    @property
    def pinned_bytes(self) -> int:
        """Weight bytes that stay in memory."""
        return sum(self._plan.extents[index].weight_bytes for index in self._shape.pin_offsets)

    @property
    def streamed_bytes(self) -> int:
        """Weight bytes that a pass streams."""
        return self._plan.pass_bytes - self.pinned_bytes

    def give_back(self, n_bytes: int) -> int:
        """Returns the bytes given back: `n_bytes` or a little more, or what there is. Between passes only."""
        shape = shrink_shape(self._plan, self._shape, n_bytes, MIN_SLOTS, self._keep)
        before = self._grant.n_bytes
        # a ring that had to grow is paid from here: nothing new is granted while there is a shortfall
        after = shape.pin_bytes + shape.ring_bytes - self._ring_bytes
        if after >= before:
            return 0
        self._stream.repin(shape)
        self._forward.repinned()
        self._shape = shape
        self._grant.resize(after)
        return before - after
