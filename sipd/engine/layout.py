"""How the budget is divided: ring, activations, KV pages and pinned tiles for one model.

A pure function of the bytes that are free, used by the daemon and by `sipd plan` alike. Invariant: pinned bytes never
fall when the budget grows, since every other part takes a share that grows more slowly than the whole.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace

from sipd.config import Config
from sipd.engine.kv_cache import pages_for
from sipd.engine.sampler import scratch_bytes
from sipd.errors import ConfigError
from sipd.kernels.binding import PAGE_POSITIONS
from sipd.models.forward import ForwardShape, activation_bytes, page_bytes
from sipd.models.program import Program
from sipd.weights.plan import Plan, build_plan, choose_pinned
from sipd.weights.probe import DEFAULT_READERS
from sipd.weights.stream import StreamShape, shape_stream, stack_bytes

MIN_CONTEXT = 256  # tokens: below this no chat is of use
MAX_DEFAULT_CONTEXT = 8192  # tokens: more is asked for by name
MAX_DEFAULT_ROWS = 2048  # rows of a pass: beyond this, compute far outweighs what one pass less would save
MIN_SLOTS = 3  # one computed, one read, one between
DEFAULT_SLOTS = 12
KV_TERM, PINS_TERM = "KV cache", "pinned weights"
# Shares of what is left after the minimum of everything; the rest is pinned.
KV_SHARE, ROWS_SHARE, RING_SHARE, DRAFT_SHARE = 0.15, 0.1, 0.1, 0.02


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts that the ledger is asked for. Bytes unless the name says otherwise."""

    plan: Plan
    stream: StreamShape
    forward: ForwardShape
    context_tokens: int
    small_tensor_bytes: int
    sampling_bytes: int
    activation_bytes: int
    kv_bytes: int
    pinned_weight_bytes: int

    @property
    def terms(self) -> tuple[tuple[str, int], ...]:
        """(name, bytes) in the order of granting."""
        n_bytes = stack_bytes(self.stream.n_readers)
        return (
            *([("reader stacks", n_bytes)] if n_bytes else []),
            ("norms and biases", self.small_tensor_bytes),
            ("sampling", self.sampling_bytes),
            ("ring", self.stream.ring_bytes),
            ("activations", self.activation_bytes),
            (KV_TERM, self.kv_bytes),
            (PINS_TERM, self.stream.pin_bytes),
        )

    @property
    def streamed_bytes(self) -> int:
        """Weight bytes that one pass streams once the pinned tiles are loaded."""
        return self.plan.pass_bytes - self.pinned_weight_bytes


@dataclass(frozen=True, slots=True)
class _Least:
    """The smallest parts that can serve a request."""

    context: int
    rows: int
    n_pages: int
    ring_bytes: int


@dataclass(frozen=True, slots=True)
class _Parts:
    """How the parts were chosen."""

    plan: Plan
    pinned: frozenset[int]
    context: int
    rows: int
    n_pages: int
    slots: int


class Divider:
    """Divides `available` bytes for one program under one configuration."""

    def __init__(
        self, library: ctypes.CDLL, program: Program, config: Config, *, n_threads: int, available: int
    ) -> None:
        self._library = library
        self._program = program
        self._config = config
        self._n_threads = n_threads
        self._available = available
        self._page = page_bytes(program)
        self._n_readers = config.readers or DEFAULT_READERS
        self._draft_rows = 0
        if config.ring_slots is not None and config.ring_slots < MIN_SLOTS:
            raise ConfigError("ring_slots", f"found {config.ring_slots}, wanted at least {MIN_SLOTS}")
        groups = [[product.weight for product in step.products] for step in program.product_steps()]
        self._plan = build_plan(groups, config.tile_bytes)
        # the embedding as tiles of its own, for when even that can be kept
        self._resident_plan = self._plan
        if not program.is_tied:
            self._resident_plan = build_plan([[program.embedding], *groups], config.tile_bytes)

    def divide(self) -> Layout:
        """The layout. When the budget is too small it is the smallest one: the ledger then refuses, with its table."""
        h = self._program.hyperparameters
        least = self._least()
        small = 4 * sum(tensor.n_elements for tensor in self._program.small_tensors())
        without_rows = self._available - small - scratch_bytes(h.vocab_size) - stack_bytes(self._n_readers)
        without_rows -= least.n_pages * self._page + least.ring_bytes
        self._draft_rows = self._divide_drafts(without_rows - self._activations(least.rows))
        least = replace(least, rows=least.rows + self._draft_rows)  # every row of logits is a row of the pass
        rest = max(0, without_rows - self._activations(least.rows))
        parts = self._resident(rest, least) or self._streamed(rest, least)
        forward = self._shape(parts.rows, parts.n_pages)
        return Layout(
            plan=parts.plan,
            stream=shape_stream(parts.plan, parts.pinned, parts.slots, self._n_readers),
            forward=forward,
            context_tokens=parts.context,
            small_tensor_bytes=small,
            sampling_bytes=scratch_bytes(h.vocab_size),
            activation_bytes=activation_bytes(self._library, self._program, parts.plan, forward),
            kv_bytes=parts.n_pages * self._page,
            pinned_weight_bytes=sum(parts.plan.extents[index].weight_bytes for index in parts.pinned),
        )

    def _least(self) -> _Least:
        """What one request needs at the very least."""
        context_length = self._program.hyperparameters.context_length
        context = self._context() or min(MIN_CONTEXT, context_length)
        ring_bytes = shape_stream(self._plan, frozenset(), MIN_SLOTS, 1).ring_bytes
        return _Least(context, max(self._config.max_requests, min(16, context_length)), pages_for(context), ring_bytes)

    def _resident(self, rest: int, least: _Least) -> _Parts | None:
        """The parts when the whole model stays in memory; None when it does not fit.

        When halving the shares of KV and rows is what makes it fit, they are halved.
        """
        if not self._config.pin:
            return None
        everything = frozenset(range(len(self._resident_plan.extents)))
        shape = shape_stream(self._resident_plan, everything, 1, 1)
        for scaled in (rest, rest // 2):
            context, kv_extra = self._divide_kv(scaled, least)
            rows, rows_extra = self._divide_rows(scaled, least, context)
            spare = rest + least.ring_bytes - kv_extra - rows_extra - shape.pin_bytes - shape.ring_bytes
            if spare >= 0:
                # nothing else is left to pin: what is spare serves more or longer requests at a time
                n_pages = least.n_pages + kv_extra // self._page
                wanted = max(n_pages, pages_for(context) * self._config.max_requests)
                n_pages = min(n_pages + spare // self._page, wanted)
                return _Parts(self._resident_plan, everything, context, rows, n_pages, 1)
        return None

    def _streamed(self, rest: int, least: _Least) -> _Parts:
        """The parts when tiles are streamed."""
        context, kv_extra = self._divide_kv(rest, least)
        rows, rows_extra = self._divide_rows(rest, least, context)
        slots, ring_extra = self._divide_ring(rest)
        left = rest - kv_extra - rows_extra - ring_extra
        pinned = choose_pinned(self._plan.extents, left) if self._config.pin else frozenset[int]()
        return _Parts(self._plan, pinned, context, rows, least.n_pages + kv_extra // self._page, slots)

    def _context(self) -> int | None:
        """The configured context, checked against the model's."""
        wanted = self._config.context
        h = self._program.hyperparameters
        if wanted is not None and wanted > h.longest_context:
            limit = "its sliding window holds" if h.longest_context == h.window else "it was made for at most"
            raise ConfigError("context", f"found {wanted}, too many for the model: {limit} {h.longest_context}")
        return wanted

    def _shape(self, rows: int, n_pages: int) -> ForwardShape:
        logit_rows = min(self._config.max_requests + self._draft_rows, rows)
        return ForwardShape(rows, logit_rows, n_pages, self._n_threads)

    def _activations(self, rows: int) -> int:
        return activation_bytes(self._library, self._program, self._plan, self._shape(rows, 1))

    def _divide_drafts(self, rest: int) -> int:
        """Rows of logits for drafts, beyond the one that every request has."""
        if not self._config.speculation:
            return 0
        h = self._program.hyperparameters
        return min(self._config.draft_tokens, max(0, int(rest * DRAFT_SHARE)) // (4 * (h.vocab_size + h.d_model)))

    def _divide_kv(self, rest: int, least: _Least) -> tuple[int, int]:
        """Context in tokens, and bytes for KV pages beyond the least."""
        h = self._program.hyperparameters
        top = least.context if self._config.context else min(h.context_length, MAX_DEFAULT_CONTEXT)
        most = max(0, pages_for(top) * self._config.max_requests - least.n_pages) * self._page
        extra = min(int(rest * KV_SHARE), most)
        n_pages = least.n_pages + extra // self._page
        return max(least.context, min(top, n_pages * PAGE_POSITIONS)), extra

    def _divide_rows(self, rest: int, least: _Least, context: int) -> tuple[int, int]:
        """Rows of a pass, and bytes for rows beyond the least."""
        top = self._config.rows_per_pass or MAX_DEFAULT_ROWS
        if self._config.rows_per_pass is not None and self._config.rows_per_pass < self._config.max_requests:
            raise ConfigError(
                "rows_per_pass", f"found {top}, wanted at least max_requests, {self._config.max_requests}"
            )
        if self._config.rows_per_pass is None:  # no pass has more rows than a request has positions
            top = min(top, self._config.context or self._program.hyperparameters.context_length)
        if top <= least.rows:
            return min(top, least.rows), 0
        least_bytes = self._activations(least.rows)
        row_bytes = self._activations(least.rows + 1) - least_bytes
        extra = min(int(rest * ROWS_SHARE), (top - least.rows) * row_bytes)
        rows = min(least.rows + extra // row_bytes, max(context, least.rows))
        while rows > least.rows and self._activations(rows) > least_bytes + extra:
            rows -= 1  # buffers begin at whole cache lines: a row may cost a little more than the one measured
        return rows, extra

    def _divide_ring(self, rest: int) -> tuple[int, int]:
        """Ring slots, and bytes for slots beyond the least."""
        wanted = self._config.ring_slots or DEFAULT_SLOTS
        slot = self._plan.largest_span
        extra = min(int(rest * RING_SHARE), (wanted - MIN_SLOTS) * slot)
        return MIN_SLOTS + extra // slot, extra


def largest_context(program: Program, n_bytes: int) -> int:
    """Tokens whose keys and values fit `n_bytes`."""
    return n_bytes // page_bytes(program) * PAGE_POSITIONS
