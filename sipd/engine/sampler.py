"""Draws one token of a request from its logits: the glue between a request and kernels/sample.c."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sipd.engine.request import Request, SampledToken
from sipd.errors import EngineFault
from sipd.kernels import binding

if TYPE_CHECKING:
    Logits = ctypes._Pointer[ctypes.c_float]  # noqa: SLF001 - the only name that the stubs have for it


class Sampler:
    """Owns the scratch memory of sampling; used by the engine thread."""

    def __init__(self, library: ctypes.CDLL, vocab_size: int) -> None:
        self._library = library
        self._vocab_size = vocab_size
        self._scratch = ctypes.create_string_buffer(scratch_bytes(vocab_size))
        self._out = binding.SampleOut()

    def draw(self, request: Request, logits: Logits, guessed: Sequence[int] = ()) -> SampledToken:
        """The token of `request` after its output and `guessed`; `logits` (vocab_size,) f32 are changed.

        Raises EngineFault if they are not finite.
        """
        output = [*request.output_ids, *guessed] if guessed else request.output_ids
        options = request.sampling
        n_bias = len(options.logit_bias)
        arguments = binding.Sampling(
            temperature=options.temperature,
            top_p=options.top_p,
            min_p=options.min_p,
            top_k=options.top_k,
            repetition_penalty=options.repetition_penalty,
            presence_penalty=options.presence_penalty,
            frequency_penalty=options.frequency_penalty,
            n_biases=n_bias,
            n_top=-1 if options.logprobs is None else min(options.logprobs, self._vocab_size),
            seed=options.seed,
            position=len(output),
        )
        if n_bias:
            arguments.bias_ids = (ctypes.c_int32 * n_bias)(*(token_id for token_id, _ in options.logit_bias))
            arguments.biases = (ctypes.c_float * n_bias)(*(bias for _, bias in options.logit_bias))
        if options.repetition_penalty != 1.0 or options.presence_penalty or options.frequency_penalty:
            counts = Counter(output)
            context = sorted(counts.keys() | set(request.prompt_ids))
            arguments.n_context = len(context)
            arguments.context_ids = (ctypes.c_int32 * len(context))(*context)
            arguments.output_counts = (ctypes.c_int32 * len(context))(*(counts[token_id] for token_id in context))
        out = self._out
        status = self._library.sipd_sample(
            logits, self._vocab_size, ctypes.byref(arguments), self._scratch, ctypes.byref(out)
        )
        if status:
            raise EngineFault(f"the logits of output token {len(output)} are not finite")
        if options.logprobs is None:
            return SampledToken(out.id)
        top = tuple((out.top_ids[i], out.top_logprobs[i]) for i in range(arguments.n_top))
        return SampledToken(out.id, out.logprob, top)


def scratch_bytes(vocab_size: int) -> int:
    """Memory that sampling needs: one (logit, id) pair a token."""
    return 8 * vocab_size
