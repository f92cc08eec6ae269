"""From the logits of a pass to tokens: draws, verifies drafts, and says when a request is complete.

Owned by the engine thread. Invariant: tokens are drawn in request order, each from the logits of the row before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sipd.engine.drafters import Drafters
from sipd.engine.executor import Executor
from sipd.engine.pass_plan import PassPlan, Sequence
from sipd.engine.request import FinishReason, Request, SampledToken
from sipd.engine.sampler import Sampler
from sipd.engine.totals import Totals
from sipd.errors import EngineFault, SipdError
from sipd.models.forward import PassResult


class EndSequence(Protocol):
    """Ends a sequence of the engine."""

    def __call__(
        self,
        sequence: Sequence,
        reason: FinishReason,
        error: SipdError | None = None,
        end_token_id: int | None = None,
    ) -> None:
        """Ends it for `reason`."""


class Delivery:
    """Delivers what passes give."""

    def __init__(  # noqa: PLR0917 - its neighbours
        self,
        executor: Executor,
        sampler: Sampler,
        drafters: Drafters,
        totals: Totals,
        context_tokens: int,
        seconds_since: Callable[[Request], float],
        end: EndSequence,
    ) -> None:
        """`seconds_since(request)` tells how long ago it came."""
        self._executor = executor
        self._sampler = sampler
        self._drafters = drafters
        self._totals = totals
        self._context_tokens = context_tokens
        self._seconds_since = seconds_since
        self._end = end

    def draw(self, sequence: Sequence, first_logits: int) -> None:
        """Draws a token, and one more for every draft that equals what was drawn before it."""
        request, drafts = sequence.request, sequence.drafts
        request.usage.drafted_tokens += len(drafts)
        self._totals.drafted_tokens += len(drafts)
        n_accepted = 0
        for index in range(len(drafts) + 1):
            try:
                token = self._sampler.draw(request, self._executor.logits(first_logits + index))
            except EngineFault as fault:
                self._end(sequence, FinishReason.ERROR, fault)
                break
            is_accepted = index < len(drafts) and drafts[index] == token.token_id
            if is_accepted:
                n_accepted += 1
                request.usage.accepted_tokens += 1
                self._totals.accepted_tokens += 1
            if self._deliver(sequence, token) or not is_accepted:
                break
            request.n_computed += 1  # the draft's row, which is now known to be this token's
        self._drafters.verified(sequence, n_accepted)

    def _deliver(self, sequence: Sequence, token: SampledToken) -> bool:
        """Hands a token on; returns whether it was the request's last one."""
        request = sequence.request
        usage = request.usage
        request.output_ids.append(token.token_id)
        usage.completion_tokens += 1
        if usage.completion_tokens == 1:
            usage.first_token_s = self._seconds_since(request)
        if token.token_id in request.end_ids:
            # an end token stands for no text: the sink learns of it by the outcome alone
            self._end(sequence, FinishReason.STOP, end_token_id=token.token_id)
        elif request.sink.token(token):
            self._end(sequence, FinishReason.STOP)
        elif usage.completion_tokens >= request.max_tokens:
            is_full = sequence.n_tokens >= self._context_tokens
            self._end(sequence, FinishReason.CONTEXT if is_full else FinishReason.LENGTH)
        else:
            return False
        return True


def charge(plan: PassPlan, result: PassResult) -> None:
    """Charges every sequence of a pass with all of it: so much it would have cost alone."""
    for sequence in plan.sequences:
        usage = sequence.request.usage
        usage.passes += 1
        usage.streamed_bytes += result.streamed_bytes
        usage.head_bytes += result.head_bytes
        usage.embedding_bytes += result.embedding_bytes
        usage.storage_wait_s += result.storage_wait_s
        if sequence.request.n_computed < len(sequence.request.prompt_ids):
            usage.prefill_passes += 1
