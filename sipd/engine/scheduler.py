"""Who takes part in the next pass, within the pages and the rows that were granted.

Interactive requests go before background ones; among equals the client with the fewest running requests goes first,
then who came first. The last place and the last quarter of the queue are kept for interactive ones. A background
request that runs goes back to the queue when an interactive one finds no pages or no place, and one whose reader is
stuck when anybody does; it waits there until its reader goes on. Owned by the engine thread, but for `waiting`, which
the engine guards. Invariant: a request is admitted only when its worst case fits the
page pool; decoders always have their row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

from sipd.engine.pace import Pace
from sipd.engine.pass_plan import PassPlan, Sequence
from sipd.engine.request import Priority, Request
from sipd.engine.reuse import Reuse, worst_case_pages

Item = TypeVar("Item")
Drafter = Callable[[list[Sequence], int], None]  # sets `drafts` of decoding sequences, this many rows in all


class Scheduler:
    """Two queues: requests that wait, sequences that run."""

    def __init__(  # noqa: PLR0917 - its neighbours
        self,
        reuse: Reuse,
        pace: Pace,
        max_rows: int,
        max_active: int,
        max_logit_rows: int,
        give_way: Callable[[Sequence], object] | None = None,
    ) -> None:
        """`give_way` gives back what a sequence holds that will be admitted again (default: `reuse.end`)."""
        self.waiting: list[Request] = []  # in the order of arrival
        self.active: list[Sequence] = []
        self._reuse = reuse
        self._pace = pace
        self._max_rows = max_rows
        self._max_active = min(max_active, max_rows)
        self._max_logit_rows = max_logit_rows
        self._give_way = give_way or reuse.end

    @property
    def n_free_places(self) -> int:
        """Requests that could run at once with those that run now."""
        return self._max_active - len(self.active)

    @property
    def row_cap(self) -> int:
        """Rows of a pass while those that run now decode."""
        return self._pace.row_cap(max(1, len(self.active)))

    @staticmethod
    def queue_share(priority: Priority, max_queued: int) -> int:
        """Requests that may wait before one more of `priority` is refused: background ones leave a quarter free."""
        return max_queued if priority is Priority.INTERACTIVE else max_queued - max_queued // 4

    def position(self, request: Request) -> int:
        """How many requests are served before it, itself included; 0 when it does not wait."""
        return self._order(self.waiting).index(request) + 1 if request in self.waiting else 0

    def admit(self) -> list[Sequence]:
        """Moves requests from the queue as long as the next one's worst case fits; returns the new sequences.

        Background sequences, and those whose readers are stuck, may go the other way, to make room.
        """
        admitted: list[Sequence] = []
        while ready := [each for each in self.waiting if not each.is_reader_behind()]:
            request = self._order(ready)[0]
            sequence = self._begin(request)
            if sequence is None:
                if self._make_way(request):
                    continue
                break
            self.waiting.remove(request)
            self.active.append(sequence)
            admitted.append(sequence)
        return admitted

    def _begin(self, request: Request) -> Sequence | None:
        """The request as a sequence; None when it must wait."""
        # nobody waits for a background reply, and nobody should wait for one to end
        n_kept = int(request.priority is not Priority.INTERACTIVE and self._max_active > 1)
        return self._reuse.admit(request) if self.n_free_places > n_kept else None

    def _make_way(self, request: Request) -> bool:
        """Sends the sequence that yields to `request` and began last back to the queue; False when that would not help.

        Its tokens stay, and its pages as far as they are not needed: what is lost is computed again, to the same bytes.
        """
        is_interactive = request.priority is Priority.INTERACTIVE
        yielding = [
            each
            for each in self.active
            if each.is_stuck or (is_interactive and each.request.priority is not Priority.INTERACTIVE)
        ]
        if not yielding:
            return False
        pool = self._reuse.pool
        users = Counter(node for each in yielding for node in each.chain)
        freed = sum(each.pages.n_promised for each in yielding)
        freed += sum(node.n_users == n for node, n in users.items())  # others, or the disk, hold the rest
        if worst_case_pages(request) > pool.n_pages - pool.n_promised + freed:
            return False
        sequence = max(reversed(yielding), key=lambda each: each.is_stuck)
        self.active.remove(sequence)
        self._give_way(sequence)
        sequence.request.n_computed = 0
        self.waiting.insert(0, sequence.request)
        return True

    def _order(self, requests: Iterable[Request]) -> list[Request]:
        """Requests in the order in which they will be admitted if nobody ends or comes."""
        n_running = Counter(sequence.request.client for sequence in self.active)
        return _by_turns(requests, lambda request: request, n_running)

    def remove(self, sequence: Sequence) -> None:
        """Ends a sequence; its pages are the caller's to give back."""
        self.active.remove(sequence)

    def plan_pass(self, draft: Drafter | None = None) -> PassPlan:
        """The next pass: a row for every decoder, its drafts, then prompt rows up to the cap.

        While nobody decodes, a prompt gets all rows there are. Sequences whose reader is behind, or whose pages are
        being read from disk, sit it out; the plan is empty when that leaves nobody.
        """
        ready = [s for s in self.active if not s.is_restoring and not s.request.is_reader_behind()]
        steppers = [s for s in ready if s.n_left == 1]
        decoders = [s for s in steppers if s.is_decoding]
        for sequence in steppers:
            sequence.n_rows, sequence.drafts = 1, ()
        prompts = _by_turns((s for s in ready if s.n_left > 1), lambda s: s.request, Counter())
        first_position = prompts[0].request.n_computed if prompts else 0
        cap = self._pace.row_cap(len(decoders), first_position) if decoders else self._max_rows
        left = min(self._max_rows, max(cap, len(steppers) + 1)) - len(steppers)
        for sequence in prompts:
            sequence.n_rows, sequence.drafts = min(sequence.n_left, left), ()
            left -= sequence.n_rows
        n_sampling = len(steppers) + sum(s.n_rows == s.n_left for s in prompts)
        if draft is not None and decoders:
            draft(decoders, min(left, self._max_logit_rows - n_sampling))
        plan = PassPlan()
        for sequence in ready:
            if sequence.n_rows:
                plan.add(sequence)
        return plan


def _by_turns(items: Iterable[Item], request_of: Callable[[Item], Request], n_before: Counter[str]) -> list[Item]:
    """Items by priority; within one, clients take turns, those first that have the fewest in `n_before`."""
    keyed = []
    for item in items:
        request = request_of(item)
        keyed.append((request.priority, n_before[request.client], item))
        n_before[request.client] += 1
    return [entry[2] for entry in sorted(keyed, key=lambda entry: entry[:2])]
