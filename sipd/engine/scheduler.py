"""Who takes part in the next pass: first come first served, within the pages and the rows that were granted.

Owned by the engine thread, but for `waiting`, which the engine guards. Invariant: a request is admitted only when
its worst case fits the page pool; decoders always have their row.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from sipd.engine.kv_cache import PageList, PagePool, pages_for
from sipd.engine.request import Request


@dataclass(eq=False, slots=True)
class Sequence:
    """An admitted request: its pages, and how many of its tokens the pass under way computes."""

    request: Request
    pages: PageList
    n_rows: int = 0
    parked_since: float | None = None  # time.monotonic() seconds; its reader has been behind since then

    @property
    def n_tokens(self) -> int:
        """Prompt and output so far."""
        return len(self.request.prompt_ids) + len(self.request.output_ids)

    def token(self, position: int) -> int:
        """The token at a position."""
        n_prompt = len(self.request.prompt_ids)
        if position < n_prompt:
            return self.request.prompt_ids[position]
        return self.request.output_ids[position - n_prompt]

    @property
    def n_left(self) -> int:
        """Tokens whose keys and values are not computed yet."""
        return self.n_tokens - self.request.n_computed


@dataclass(slots=True)
class PassPlan:
    """The rows of one pass: (token, position, sequence, logits row or -1), and the sequences in row order."""

    sequences: list[Sequence] = field(default_factory=list)
    rows: list[tuple[int, int, int, int]] = field(default_factory=list)
    sampling: list[Sequence] = field(default_factory=list)  # i-th logits row belongs to the i-th of these

    @property
    def pages(self) -> list[list[int]]:
        """Pages of each sequence, in row order."""
        return [sequence.pages.pages for sequence in self.sequences]


class Scheduler:
    """Two queues: requests that wait, sequences that run."""

    def __init__(self, pool: PagePool, max_rows: int, max_active: int) -> None:
        self.waiting: deque[Request] = deque()
        self.active: list[Sequence] = []
        self._pool = pool
        self._max_rows = max_rows
        self._max_active = min(max_active, max_rows)

    @property
    def n_free_places(self) -> int:
        """Requests that could run at once with those that run now."""
        return self._max_active - len(self.active)

    def worst_case_pages(self, request: Request) -> int:
        """Pages that a request may need at its end; the last token is sampled, not computed."""
        return pages_for(len(request.prompt_ids) + request.max_tokens - 1)

    def admit(self) -> list[Sequence]:
        """Moves requests from the head of the queue as long as their worst case fits; returns the new sequences."""
        admitted: list[Sequence] = []
        while self.waiting and len(self.active) < self._max_active:
            pages = self._pool.reserve(self.worst_case_pages(self.waiting[0]))
            if pages is None:
                break
            sequence = Sequence(self.waiting.popleft(), pages)
            self.active.append(sequence)
            admitted.append(sequence)
        return admitted

    def remove(self, sequence: Sequence) -> None:
        """Ends a sequence: its pages are free again."""
        self.active.remove(sequence)
        sequence.pages.release()

    def plan_pass(self) -> PassPlan:
        """The next pass: a row for every decoder, then prompt rows in the order of arrival up to the cap.

        Sequences whose reader is behind sit it out; the plan is empty when that leaves nobody.
        """
        ready = [sequence for sequence in self.active if not sequence.request.is_reader_behind()]
        left = self._max_rows - sum(1 for sequence in ready if sequence.n_left == 1)
        plan = PassPlan()
        for sequence in ready:
            if sequence.n_left == 1:
                sequence.n_rows = 1
            else:
                sequence.n_rows = min(sequence.n_left, left)
                left -= sequence.n_rows
            if sequence.n_rows:
                self._add_rows(plan, sequence)
        return plan

    @staticmethod
    def _add_rows(plan: PassPlan, sequence: Sequence) -> None:
        first = sequence.request.n_computed
        end = first + sequence.n_rows
        sequence.pages.cover(end)
        index = len(plan.sequences)
        plan.sequences.append(sequence)
        for position in range(first, end):
            plan.rows.append((sequence.token(position), position, index, -1))
        if end == sequence.n_tokens:
            token, position, _, _ = plan.rows[-1]
            plan.rows[-1] = (token, position, index, len(plan.sampling))
            plan.sampling.append(sequence)
