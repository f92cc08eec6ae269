"""Sums over all passes since the start; written by the engine thread under its lock."""

from __future__ import annotations

from dataclasses import dataclass

from sipd.models.forward import PassResult


@dataclass(slots=True)
class Totals:
    """Counts and seconds of all passes."""

    n_passes: int = 0
    n_rows: int = 0
    streamed_bytes: int = 0
    head_bytes: int = 0
    embedding_bytes: int = 0
    embedding_device_bytes: int = 0
    storage_wait_s: float = 0.0
    compute_s: float = 0.0
    storage_idle_s: float = 0.0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    def add(self, result: PassResult, n_rows: int, reader_busy_s: float) -> None:
        """Joins one pass, in which readers were busy for `reader_busy_s`."""
        self.storage_idle_s += max(0.0, result.total_s - reader_busy_s)
        self.n_passes += 1
        self.n_rows += n_rows
        self.streamed_bytes += result.streamed_bytes
        self.head_bytes += result.head_bytes
        self.embedding_bytes += result.embedding_bytes
        self.embedding_device_bytes += result.embedding_device_bytes
        self.storage_wait_s += result.storage_wait_s
        self.compute_s += result.total_s - result.storage_wait_s
