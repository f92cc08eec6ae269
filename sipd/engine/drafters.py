"""Who drafts for whom: asks for drafts before a pass and learns from what became of them after it.

Owned by the engine thread. Invariant: drafts never reach past a request's last token, its pages or the logits rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sipd.engine.draft_model import DraftAsk, DraftModel
from sipd.engine.pace import Pace
from sipd.engine.pass_plan import Sequence
from sipd.engine.sampler import Sampler
from sipd.engine.speculation import RETRY_EVERY, draft_length
from sipd.errors import EngineFault

if TYPE_CHECKING:
    from collections.abc import Callable

    from sipd.engine.draft_model import Logits


class Drafters:
    """Prompt lookup for every decoding sequence that wants it, and the draft model where that finds nothing."""

    def __init__(self, most: int, pace: Pace, sampler: Sampler, model: DraftModel | None = None) -> None:
        """`most`: drafts of one sequence in one pass; 0 switches speculation off."""
        self._most = most
        self._pace = pace
        self._sampler = sampler
        self._model = model

    def draft(self, decoders: list[Sequence], n_rows: int) -> None:
        """Sets the drafts of `decoders`, at most `n_rows` in all, shared evenly."""
        wanting = [sequence for sequence in decoders if sequence.request.speculates]
        if not self._most:
            return
        without: list[tuple[Sequence, int]] = []
        for index, sequence in enumerate(wanting):
            request = sequence.request
            share = max(0, n_rows) // (len(wanting) - index)
            most = min(share, self._most, request.max_tokens - len(request.output_ids) - 1)
            if most <= 0:
                continue
            lookup = sequence.drafting.lookup
            lookup.extend(sequence.tokens(len(lookup)))
            sequence.drafts = sequence.drafting.propose(most, self._pace, len(decoders))
            n_rows -= len(sequence.drafts) or (most if self._model is not None else 0)
            if not sequence.drafts:
                without.append((sequence, most))
        if self._model is not None and without:
            self._ask_model(self._model, without, len(decoders))

    def _ask_model(self, model: DraftModel, wanting: list[tuple[Sequence, int]], n_decoders: int) -> None:
        """Asks for as many drafts as pay, of all sequences in the same steps."""
        asks = []
        for sequence, most in wanting:
            drafting = sequence.drafting
            step_s = model.step_s / len(wanting)  # the others need the step as well
            n = draft_length(drafting.of_model.rate, most, self._pace, n_decoders, step_s)
            if n == 0 and drafting.n_skipped % RETRY_EVERY == 0:
                n = 1
            if n:
                asks.append(DraftAsk(sequence, sequence.tokens(), n, self._draw(sequence)))
        for ask, drafts in zip(asks, model.draft_many(asks), strict=True):
            asking = ask.key
            assert isinstance(asking, Sequence)
            if drafts:
                asking.drafts, asking.drafting.is_from_model = tuple(drafts), True

    def _draw(self, sequence: Sequence) -> Callable[[Logits, int], int | None]:
        guessed: list[int] = []

        def draw(logits: Logits, _index: int) -> int | None:
            request = sequence.request
            try:
                token_id = self._sampler.draw(request, logits, guessed).token_id
            except EngineFault:  # logits of the draft model that are no numbers: no guess
                return None
            guessed.append(token_id)
            return None if token_id in request.end_ids else token_id

        return draw

    def verified(self, sequence: Sequence, n_accepted: int) -> None:
        """How many drafts of the pass that ran were right."""
        sequence.drafting.verified(n_accepted, len(sequence.drafts))

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        if self._model is not None:
            self._model.forget(sequence)

    def stop(self) -> None:
        """Ends what the draft model is at; from any thread."""
        if self._model is not None:
            self._model.control.cancel = 1

    def close(self) -> None:
        """Frees what drafting needed."""
        if self._model is not None:
            self._model.close()
