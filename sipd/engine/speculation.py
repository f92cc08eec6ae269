"""Speculation: how many tokens are drafted for a sequence, and what became of them.

A draft is a row of the next pass; it is accepted when it equals what the request's own sampler draws, so that drafts
change when tokens come and never which. Invariant: a sequence drafts only where the cost model says that it pays.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sipd.engine.pace import Pace
from sipd.engine.prompt_lookup import PromptLookup

_DECAY = 0.85  # of what earlier drafts did: about seven drafted tokens are remembered
_PRIOR_RIGHT, _PRIOR_TRIED = 0.7, 1.0
RETRY_EVERY = 24  # tokens after which a sequence whose drafts did not pay tries a short one again


@dataclass(slots=True)
class Acceptance:
    """How often drafts were right of late."""

    right: float = _PRIOR_RIGHT
    tried: float = _PRIOR_TRIED

    @property
    def rate(self) -> float:
        """The chance that a drafted token is right, given that those before it are."""
        return min(0.98, self.right / self.tried)

    def add(self, n_accepted: int, n_drafted: int) -> None:
        """Drafts after the first wrong one were not tried."""
        tried = min(n_accepted + 1, n_drafted)
        keep = _DECAY**tried
        self.right = keep * self.right + n_accepted
        self.tried = keep * self.tried + tried


@dataclass(slots=True)
class Drafting:
    """The drafts of one sequence; `n_skipped` counts tokens drawn since it last drafted."""

    lookup: PromptLookup = field(default_factory=PromptLookup)
    of_lookup: Acceptance = field(default_factory=Acceptance)
    of_model: Acceptance = field(default_factory=Acceptance)
    is_from_model: bool = False
    n_skipped: int = 0

    def propose(self, most: int, pace: Pace, n_decoders: int) -> tuple[int, ...]:
        """Drafts to verify beside the rows of `n_decoders` sequences, at most `most`; none where it does not pay."""
        self.is_from_model = False
        n = draft_length(self.of_lookup.rate, most, pace, n_decoders)
        if n == 0 and most > 0 and self.n_skipped >= RETRY_EVERY:
            n = 1
        drafts = tuple(self.lookup.draft(n)) if n else ()
        self.n_skipped = 0 if drafts else self.n_skipped + 1
        return drafts

    def verified(self, n_accepted: int, n_drafted: int) -> None:
        """What became of the drafts."""
        if n_drafted:
            (self.of_model if self.is_from_model else self.of_lookup).add(n_accepted, n_drafted)


def draft_length(rate: float, most: int, pace: Pace, n_rows: int, draft_s: float = 0.0) -> int:
    """How many drafts make the most tokens a second, others' included, beside a row for each of `n_rows` decoders.

    Each draft costs `draft_s` seconds to make.
    """
    alone = pace.pass_s(n_rows)
    if alone is None:  # nothing is known of cost: a few do not hurt, as long as they are right
        return min(most, 4) if rate >= 0.5 else 0
    best, best_speed = 0, n_rows / alone
    expected, chance = float(n_rows), 1.0
    for n in range(1, most + 1):
        chance *= rate
        expected += chance
        cost = pace.pass_s(n_rows + n)
        assert cost is not None
        speed = expected / (cost + n * draft_s)
        if speed > best_speed:
            best, best_speed = n, speed
    return best
