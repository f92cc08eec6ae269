"""Runs passes to their end: the forward, and what to do when storage fails under it.

Owned by the engine thread. Invariant: after `run` returns or raises, the stream stands at the first tile again or
reads ahead for the next pass; a pass that was begun anew gives the same result, since rows overwrite their own KV.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sipd.errors import DataLoss, EngineFault, SipdError, StorageFault
from sipd.kernels import binding
from sipd.models.forward import Forward, PassResult
from sipd.weights.probe import ProbeResult
from sipd.weights.stream import Stream, StreamCounters

if TYPE_CHECKING:
    import ctypes

    from sipd.engine.pins import Pins

_LOG = logging.getLogger("sipd.engine")
RETRY_PAUSES_S = (0.1, 0.2, 0.5, 1.0, 1.0, 1.0, 1.0)  # a USB disk that dropped off the bus is back within seconds
_POLL_S = 0.05


class Executor:
    """One model, ready to run."""

    def __init__(
        self,
        forward: Forward,
        stream: Stream,
        *,
        streamed_plan_bytes: int,
        pinned_bytes: int,
        contract: int,
        probe: ProbeResult,
    ) -> None:
        self.probe = probe
        self._forward = forward
        self._stream = stream
        self.streamed_plan_bytes = streamed_plan_bytes
        self.pinned_bytes = pinned_bytes
        self.arithmetic_contract = contract
        self.control = forward.control
        self.isa: str = forward.isa
        self.max_rows = forward.shape.max_rows
        self.max_logit_rows = forward.shape.max_logit_rows
        self.vocab_size = forward.hyperparameters.vocab_size
        self.n_layers = forward.hyperparameters.n_layers
        self._pins: Pins | None = None  # the twin has none
        stream.on_fallback(_LOG.warning)

    def use_pins(self, pins: Pins) -> None:
        """From now on pinned tiles can be given back, and taken again."""
        self._pins = pins

    def give_back(self, n_bytes: int) -> int:
        """Gives up to `n_bytes` of pinned weights back; returns the bytes. Between passes only."""
        return 0 if self._pins is None else self._changed(self._pins, self._pins.give_back(n_bytes))

    def take_back(self, n_bytes: int) -> int:
        """Pins again what was given back, up to `n_bytes`; returns the bytes. Between passes only."""
        return 0 if self._pins is None else self._changed(self._pins, self._pins.take_back(n_bytes))

    def _changed(self, pins: Pins, n_bytes: int) -> int:
        self.pinned_bytes, self.streamed_plan_bytes = pins.pinned_bytes, pins.streamed_bytes
        return n_bytes

    @property
    def uses_direct_io(self) -> bool:
        """Whether reads bypass the page cache now."""
        return self._stream.uses_direct_io

    def run(
        self,
        rows: Sequence[tuple[int, int, int, int]],
        n_logits: int,
        pages: Sequence[Sequence[int]],
        is_unwanted: Callable[[], bool],
    ) -> PassResult:
        """One pass; blocks. Retries a failing disk for some seconds; raises StorageFault after that.

        Raises DataLoss when a file ends early or was changed.
        """
        pauses = iter(RETRY_PAUSES_S)
        result: PassResult | None = None
        while True:
            result = self._forward.run(rows, n_logits, pages).after(result)
            if result.status == binding.PASS_DONE:
                if result.streamed_bytes:
                    self._stream.check_files()  # bytes of two versions of a file make fluent nonsense
                return result
            if result.status == binding.PASS_CANCELLED:
                self._stream.rewind()
                return result
            found = self._stream.fault()
            if found is None:
                raise EngineFault("a pass ended early without a fault")
            fault, error_number = found
            if self._stream.recover_from(fault, error_number):
                continue
            pause = next(pauses, None)
            if pause is None or isinstance(fault, DataLoss):
                raise fault
            _LOG.warning("%s; trying again in %g s", fault, pause)
            if self._wait(pause, is_unwanted):
                self._try_to_recover()
                return replace(result, status=binding.PASS_CANCELLED)
            self._try_to_recover()

    @staticmethod
    def _wait(seconds: float, is_unwanted: Callable[[], bool]) -> bool:
        """Waits; returns True at once when nobody wants the pass any more."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if is_unwanted():
                return True
            time.sleep(_POLL_S)
        return is_unwanted()

    def _try_to_recover(self) -> None:
        try:
            self._stream.recover()
        except DataLoss:
            raise
        except StorageFault as fault:
            _LOG.warning("%s", fault)

    def reset(self) -> None:
        """After a failed pass: ready for the next one, if storage allows; the next pass finds out."""
        try:
            self._stream.recover()
        except SipdError as error:
            _LOG.warning("%s", error)

    def logits(self, row: int) -> ctypes._Pointer[ctypes.c_float]:
        """Logits of one row of the latest pass, (vocab_size,) f32."""
        return self._forward.logits(row)

    def counters(self) -> StreamCounters:
        """Totals of the readers; from any thread."""
        return self._stream.counters()

    def close(self) -> None:
        """Frees the model, ends all threads, closes the files."""
        self._forward.close()
        self._stream.close()
