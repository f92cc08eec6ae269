"""The numbers that define a decoder, whatever file they came from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """Checked numbers of one model. Dimensions are elements; frequencies are radians per position."""

    architecture: str
    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ff: int
    vocab_size: int
    context_length: int  # positions it was trained for, at most the window
    longest_context: int  # positions it can be asked to take: its scaling may reach further than its training
    window: int | None  # positions that attention sees back, the last one included; None without bound
    rms_eps: float
    n_rot: int
    is_neox: bool  # rotary pairs are (i, i + n_rot / 2) rather than (2i, 2i + 1)
    inverse_frequencies: tuple[float, ...]

    @property
    def q_width(self) -> int:
        """Elements of a row of queries."""
        return self.n_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Elements of a row of keys, or of values."""
        return self.n_kv_heads * self.head_dim
