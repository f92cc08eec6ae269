"""Which tiles stay in memory, and the grant for them: fewer under a lowered limit, all again when it is raised.

Owned by the engine thread. Invariant: the grant is what the pinned tiles and a grown ring take, at any moment; which
tiles are pinned follows from the grant alone, so that more of it never streams more.
"""

from __future__ import annotations

import logging

from sipd.engine.layout import MIN_SLOTS, Layout
from sipd.errors import BudgetError, SipdError
from sipd.memory import Grant
from sipd.models.forward import Forward
from sipd.models.program import Program
from sipd.weights.stream import Stream, StreamShape, shrink_shape

_LOG = logging.getLogger("sipd.engine")


class Pins:
    """The pinned tiles of one model, from what the layout gave it downwards."""

    def __init__(self, program: Program, layout: Layout, stream: Stream, forward: Forward, grant: Grant) -> None:
        self._plan = layout.plan
        self._most = self._shape = layout.stream
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
        before = self._grant.n_bytes
        shape = self._shape_for(before - n_bytes)
        after = self._granted_for(shape)
        if after >= before or not self._take_over(shape):
            return 0
        self._grant.resize(after)
        return before - after

    def take_back(self, n_bytes: int) -> int:
        """Returns the bytes taken: what `n_bytes` hold of what the layout had pinned. Between passes only.

        The readers fill the tiles in the next pass, which would have streamed them.
        """
        before = self._grant.n_bytes
        shape = self._shape_for(before + n_bytes)
        if len(shape.pin_offsets) <= len(self._shape.pin_offsets):
            return 0
        after = self._granted_for(shape)
        try:
            self._grant.resize(after)
        except BudgetError:  # the limit was lowered again meanwhile
            return 0
        if not self._take_over(shape):
            self._grant.resize(before)
            return 0
        return after - before

    def _shape_for(self, n_bytes: int) -> StreamShape:
        """The layout's own shape, or as much of it as a grant of `n_bytes` holds."""
        lacking = self._granted_for(self._most) - n_bytes
        return self._most if lacking <= 0 else shrink_shape(self._plan, self._most, lacking, MIN_SLOTS, self._keep)

    def _granted_for(self, shape: StreamShape) -> int:
        """A ring that had to grow is paid from here: nothing new is granted while there is a shortfall."""
        return shape.pin_bytes + shape.ring_bytes - self._most.ring_bytes

    def _take_over(self, shape: StreamShape) -> bool:
        """Whether there was memory for its ring; nothing has changed otherwise."""
        try:
            self._stream.repin(shape)
        except SipdError as error:
            _LOG.warning("the pinned weights stay as they are: %s", error)
            return False
        self._forward.repinned()
        self._shape = shape
        return True
