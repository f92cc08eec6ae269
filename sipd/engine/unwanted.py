"""Whether anybody still wants a request, and how it ends when nobody does.

Owned by the engine thread. Invariant: a reader that is behind is waited for, but not for longer than MAX_PARKED_S, and
for no longer than STUCK_S while others wait for its place or its pages.
"""

from __future__ import annotations

import time

from sipd.engine.pass_plan import Sequence
from sipd.engine.request import FinishReason, Request
from sipd.errors import Cancelled, DeadlineExceeded, SipdError

MAX_PARKED_S = 60.0  # a reader that is behind for longer is not waited for
STUCK_S = 5.0  # one that is behind for longer gives its place and its pages up to those who wait


def is_late(request: Request, now: float) -> bool:
    """Whether its deadline has passed; `now` in seconds of the monotonic clock."""
    return request.deadline is not None and now >= request.deadline


def how_it_ends(request: Request) -> tuple[FinishReason, SipdError]:
    """The end of a request that nobody wants: too late, or cancelled."""
    if is_late(request, time.monotonic()):
        return FinishReason.DEADLINE, DeadlineExceeded("the request's deadline has passed")
    return FinishReason.CANCELLED, Cancelled("the client cancelled or went away")


def why_unwanted(sequence: Sequence, now: float, *, is_cancelled: bool) -> tuple[FinishReason, SipdError] | None:
    """The end of a sequence that is not to go on, or None; notes since when its reader has been behind."""
    if is_cancelled or is_late(sequence.request, now):
        return how_it_ends(sequence.request)
    if not sequence.request.is_reader_behind():
        sequence.parked_since, sequence.is_stuck = None, False
        return None
    if sequence.parked_since is None:
        sequence.parked_since = now
    sequence.is_stuck = now - sequence.parked_since > STUCK_S
    if now - sequence.parked_since > MAX_PARKED_S:
        return FinishReason.CANCELLED, Cancelled(f"the reader has been {MAX_PARKED_S:g} s behind")
    return None
