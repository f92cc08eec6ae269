"""What the engine asks of the kernel library beside passes, computed by the NumPy twin: for hosts without the library.

Invariant: functions have the names, arguments and results of those in sipd.h. Passes themselves run in
models/reference_forward.py.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from sipd.kernels import binding
from sipd.kernels.reference_quants import dequantize
from sipd.kernels.reference_sample import SampleOptions, sample
from sipd.weights.tensor_table import QuantType

CONTRACT_VERSION = 1  # SIPD_CONTRACT_VERSION
_TYPES = {quant_type.type_id: quant_type for quant_type in QuantType}
_COPIES = 4  # arrays of an activation that NumPy holds at once while it computes one


class ReferenceLibrary:
    """Stands in for the native library where the engine is given one."""

    @staticmethod
    def sipd_contract_version() -> int:
        """Version of the arithmetic contract."""
        return CONTRACT_VERSION

    @staticmethod
    def sipd_isa_count() -> int:
        """No instruction set: only the twin."""
        return 0

    @staticmethod
    def sipd_dequantize_row(type_id: int, raw: bytes, n: int, out: ctypes.Array[ctypes.c_float]) -> None:
        """One row of any type as f32."""
        quant_type = _TYPES[type_id]
        row = np.frombuffer(raw, np.uint8, quant_type.row_bytes(n)).reshape(1, -1)
        np.ctypeslib.as_array(out)[:n] = dequantize(quant_type, row)[0]

    @staticmethod
    def sipd_activation_bytes(config: Any, n_threads: int) -> int:  # noqa: ANN401 - what ctypes.byref returns
        """About what a pass needs; the twin has no arena, so this is a bound and not a layout."""
        del n_threads
        c: binding.ModelConfig = config._obj  # noqa: SLF001 - the structure that byref was given
        widths = 2 * c.d_model + (2 * c.n_heads + 2 * c.n_kv_heads) * c.head_dim + 3 * c.d_ff
        return int(4 * (_COPIES * c.max_rows * widths + c.max_logit_rows * (c.vocab_size + c.d_model)))

    @staticmethod
    def sipd_sample(
        logits: Any,  # noqa: ANN401 - pointers and references as ctypes makes them
        n: int,
        options: Any,  # noqa: ANN401
        scratch: object,
        out: Any,  # noqa: ANN401
    ) -> int:
        """Draws one token; logits are changed in place. Returns -1 when they are not finite."""
        del scratch
        o: binding.Sampling = options._obj  # noqa: SLF001
        found = sample(
            np.ctypeslib.as_array(logits, (n,)),
            SampleOptions(
                temperature=o.temperature,
                top_p=o.top_p,
                min_p=o.min_p,
                top_k=o.top_k,
                repetition_penalty=o.repetition_penalty,
                presence_penalty=o.presence_penalty,
                frequency_penalty=o.frequency_penalty,
                biases=tuple((o.bias_ids[i], o.biases[i]) for i in range(o.n_biases)),
                output_counts={o.context_ids[i]: o.output_counts[i] for i in range(o.n_context)},
                seed=o.seed,
                position=o.position,
                n_top=o.n_top,
            ),
        )
        if found is None:
            return -1
        result: binding.SampleOut = out._obj  # noqa: SLF001
        result.id, result.logprob = found.token_id, found.logprob
        for i, (token_id, logprob) in enumerate(found.top):
            result.top_ids[i], result.top_logprobs[i] = token_id, logprob
        return 0
