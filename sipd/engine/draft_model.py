"""A small resident model that guesses the next tokens of several sequences at once, a step a pass.

Owned by the engine thread. Invariant: guesses never decide a text, so every fault here ends in fewer guesses; keys and
values of a sequence are those of the ids that its context lists, whatever was rejected in between.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sipd.engine.kv_cache import pages_for
from sipd.errors import DataLoss, EngineFault, StorageFault
from sipd.kernels import binding

if TYPE_CHECKING:
    import ctypes

    from sipd.models.forward import Forward
    from sipd.weights.stream import Stream

    Logits = ctypes._Pointer[ctypes.c_float]  # noqa: SLF001 - the only name that the stubs have for it

_LOG = logging.getLogger("sipd.engine")
CHUNK_S = 0.1  # what catching up with a long prompt may cost one call, about
MIN_CHUNK_ROWS = 16
RETRY_S = 10.0  # between attempts to load from storage that fails
_STEP_WEIGHT = 0.25  # of the latest step in the mean


@dataclass(frozen=True, slots=True)
class DraftAsk:
    """What a sequence wants: up to `n` ids that may follow `ids`, its prompt and output so far.

    `draw(logits, i)` draws the i-th of them from (vocab_size,) f32 logits, which it may change; None ends the draft.
    """

    key: object
    ids: Sequence[int]
    n: int
    draw: Callable[[Logits, int], int | None]


@dataclass(slots=True)
class _Context:
    """Keys and values of one sequence from its token number `base` on: those of `ids`, in `pages`."""

    base: int = 0
    ids: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)

    def align(self, ids: Sequence[int], n: int, window: int) -> list[int]:
        """Keeps what still holds for `ids`; returns the ids from `base` on, of which the last is never kept.

        A sequence that outgrows the window begins anew at half a window before its end.
        """
        if not self.base < len(ids) <= self.base + window - n:
            self.base = max(0, len(ids) - window // 2) if len(ids) > window - n else 0
        wanted = list(ids[self.base :])
        del self.ids[min(_common_prefix(self.ids, wanted), len(wanted) - 1) :]
        return wanted


@dataclass(slots=True)
class _Job:
    """One ask in work."""

    context: _Context
    wanted: list[int]
    n: int
    draw: Callable[[Logits, int], int | None]
    drafts: list[int]

    @property
    def n_left(self) -> int:
        """Tokens whose keys and values are missing."""
        return len(self.wanted) - len(self.context.ids)


class DraftModel:
    """A draft model whose weights are all pinned; loading goes on beside the first passes of its target."""

    def __init__(self, forward: Forward, stream: Stream, *, load_bytes: int, window: int) -> None:
        """`load_bytes` is what the stream reads until every weight is there, `window` the longest context in tokens."""
        self.control = forward.control  # set `cancel` to end a call within one block; the caller resets it
        self.window = window
        self.step_s = 0.0  # mean seconds of one step; 0 until there was one
        self.last_s = 0.0  # seconds of the latest call
        self._forward = forward
        self._stream = stream
        self._load_bytes = load_bytes
        self._max_rows = forward.shape.max_rows
        self._max_jobs = min(forward.shape.max_logit_rows, forward.shape.max_rows)
        self._chunk_rows = min(self._max_rows, max(MIN_CHUNK_ROWS, 2 * self._max_jobs))
        self._free = list(range(forward.shape.n_pages - 1, -1, -1))
        self._contexts: dict[object, _Context] = {}  # least recently asked for first
        self._is_loaded = False
        self._is_off = False
        self._retry_at: float | None = None
        stream.on_fallback(_LOG.warning)

    @property
    def n_free_pages(self) -> int:
        """KV pages that no sequence holds."""
        return len(self._free)

    def draft(self, key: object, ids: Sequence[int], n: int, draw: Callable[[Logits, int], int | None]) -> list[int]:
        """Drafts of one sequence; see `draft_many`."""
        return self.draft_many([DraftAsk(key, ids, n, draw)])[0]

    def draft_many(self, asks: Sequence[DraftAsk]) -> list[list[int]]:
        """For each ask at most `n` ids; none while weights load, a long prompt is caught up with, or pages lack.

        Blocks for one pass of at most a chunk of rows, then one of a row a sequence for each further token.
        """
        begin = time.monotonic()
        drafts: list[list[int]] = [[] for _ in asks]
        if self.is_ready():
            jobs = self._jobs(asks, drafts)
            if jobs:
                self._work(jobs)
        self.last_s = time.monotonic() - begin
        return drafts

    def forget(self, key: object) -> None:
        """The sequence has ended: its pages are free again. Does nothing for an unknown key."""
        context = self._contexts.pop(key, None)
        if context is not None:
            self._free.extend(reversed(context.pages))

    def close(self) -> None:
        """Frees the model, ends its threads, closes its files."""
        self._contexts.clear()
        self._is_off = True
        self._forward.close()
        self._stream.close()

    def is_ready(self) -> bool:
        """Whether every weight is in memory; looks after a load that failed."""
        if self._is_loaded or self._is_off:
            return not self._is_off
        try:
            self._look_after_load()
        except DataLoss as fault:
            self._switch_off(fault)
        except StorageFault as fault:
            _LOG.warning("draft model: %s; trying again in %g s", fault, RETRY_S)
            self._retry_at = time.monotonic() + RETRY_S
        return self._is_loaded

    def _look_after_load(self) -> None:
        """Raises StorageFault or DataLoss when reads fail."""
        if self._retry_at is not None:
            if time.monotonic() < self._retry_at:
                return
            self._stream.recover()
            self._retry_at = None
        found = self._stream.fault()
        if found is not None:
            if not self._stream.recover_from(*found):
                raise found[0]
        elif self._stream.counters().plan_bytes >= self._load_bytes:
            self._stream.check_files()
            self._is_loaded = True
            _LOG.info("draft model: %d bytes loaded", self._load_bytes)

    def _switch_off(self, reason: object) -> None:
        self._is_off = True
        _LOG.warning("draft model: off from now on: %s", reason)

    def _jobs(self, asks: Sequence[DraftAsk], drafts: list[list[int]]) -> list[_Job]:
        """The asks that have pages, their contexts aligned."""
        jobs: list[_Job] = []
        asked = {ask.key for ask in asks}
        for ask, out in zip(asks, drafts, strict=True):
            n = min(ask.n, self.window // 2)
            if n < 1 or not ask.ids or len(jobs) == self._max_jobs:
                continue
            context = self._contexts.pop(ask.key) if ask.key in self._contexts else _Context()
            self._contexts[ask.key] = context  # asked for last
            wanted = context.align(ask.ids, n, self.window)
            if self._cover(context, len(wanted) + n - 1, asked):
                jobs.append(_Job(context, wanted, n, ask.draw, out))
            else:
                self.forget(ask.key)
        return jobs

    def _cover(self, context: _Context, n_positions: int, asked: set[object]) -> bool:
        """Takes pages for `n_positions`, from the sequence that was not asked for longest if need be."""
        n_lacking = pages_for(n_positions) - len(context.pages)
        idle = (key for key in list(self._contexts) if key not in asked)
        while len(self._free) < n_lacking and (key := next(idle, None)) is not None:
            self.forget(key)
        if len(self._free) < n_lacking:
            return False
        context.pages.extend(self._free.pop() for _ in range(n_lacking))
        return True

    def _work(self, jobs: list[_Job]) -> None:
        """Catches up as far as a chunk goes, then drafts for those who have caught up."""
        live = self._catch_up(jobs)
        i = 0
        while live:
            live = [job for row, job in enumerate(live) if self._draw(job, row, i)]
            i += 1
            if not live or not self._step(live):
                return

    def _catch_up(self, jobs: list[_Job]) -> list[_Job]:
        """One pass over what is missing, least first; returns those that lack nothing, in the order of their logits."""
        rows: list[tuple[int, int, int, int]] = []
        done: list[_Job] = []
        taken: list[tuple[_Job, int]] = []
        for job in sorted(jobs, key=lambda job: job.n_left):
            begin = len(job.context.ids)
            end = min(len(job.wanted), begin + self._chunk_rows - len(rows))
            if begin == end:
                break
            rows += [(job.wanted[position], position, len(taken), -1) for position in range(begin, end)]
            taken.append((job, end))
            if end == len(job.wanted):
                token, position, index, _ = rows[-1]
                rows[-1] = (token, position, index, len(done))
                done.append(job)
        seconds = self._run(rows, len(done), [job for job, _ in taken])
        if seconds is None:
            return []
        for job, end in taken:
            job.context.ids += job.wanted[len(job.context.ids) : end]
        if len(rows) >= MIN_CHUNK_ROWS:
            fitting = int(CHUNK_S * len(rows) / max(seconds, 1e-6))
            self._chunk_rows = min(self._max_rows, max(MIN_CHUNK_ROWS, 2 * self._max_jobs, fitting))
        return done

    def _step(self, live: list[_Job]) -> bool:
        """One pass over the latest draft of each; False when it did not run to its end."""
        rows = [(job.drafts[-1], len(job.context.ids), index, index) for index, job in enumerate(live)]
        seconds = self._run(rows, len(live), live)
        if seconds is None:
            return False
        for job in live:
            job.context.ids.append(job.drafts[-1])
        self.step_s += (seconds - self.step_s) * (_STEP_WEIGHT if self.step_s else 1.0)
        return True

    def _draw(self, job: _Job, row: int, i: int) -> bool:
        """Draws the i-th draft; whether another one is wanted."""
        try:
            token = job.draw(self._forward.logits(row), i)
        except EngineFault as fault:  # logits that are not finite are no guess
            _LOG.debug("draft model: %s", fault)
            return False
        if token is None:
            return False
        job.drafts.append(token)
        return len(job.drafts) < job.n

    def _run(self, rows: list[tuple[int, int, int, int]], n_logits: int, jobs: list[_Job]) -> float | None:
        """Seconds of one pass; None when it was cancelled or failed."""
        result = self._forward.run(rows, n_logits, [job.context.pages for job in jobs])
        if result.is_done:
            return result.total_s
        if result.status == binding.PASS_CANCELLED:
            self._stream.rewind()
        else:
            self._switch_off(self._stream.fault() or "a pass ended early without a fault")
        return None


def _common_prefix(ours: list[int], theirs: list[int]) -> int:
    """How many ids from the first on are equal."""
    n = min(len(ours), len(theirs))
    if ours[:n] == theirs[:n]:
        return n
    return next(i for i in range(n) if ours[i] != theirs[i])
