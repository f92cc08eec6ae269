"""The tensor table: what both file formats are reduced to.

Invariant: every extent (offset, n_bytes) in a table lies inside its file; the readers of the formats check it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


class QuantType(enum.Enum):
    """Element types of weights; value = (GGML type id, elements per block, bytes per block).

    Source: the GGUF specification, section "ggml_type", and the block layouts of ggml-common.h.
    """

    F32 = (0, 1, 4)
    F16 = (1, 1, 2)
    Q4_0 = (2, 32, 18)
    Q4_1 = (3, 32, 20)
    Q5_0 = (6, 32, 22)
    Q5_1 = (7, 32, 24)
    Q8_0 = (8, 32, 34)
    Q4_K = (12, 256, 144)
    Q5_K = (13, 256, 176)
    Q6_K = (14, 256, 210)
    BF16 = (30, 1, 2)

    @property
    def type_id(self) -> int:
        """The GGML type id, also the id in the kernels' ABI."""
        return self.value[0]

    @property
    def block_size(self) -> int:
        """Elements per block."""
        return self.value[1]

    @property
    def block_bytes(self) -> int:
        """Bytes per block."""
        return self.value[2]

    def row_bytes(self, n_elements: int) -> int:
        """Bytes of one row of `n_elements`, which must be a whole number of blocks."""
        return n_elements // self.block_size * self.block_bytes


@dataclass(frozen=True, slots=True)
class Tensor:
    """One weight tensor: where it lies and what it is. `shape` is row-major, (n_out, n_in) for a matrix."""

    name: str
    shape: tuple[int, ...]
    quant_type: QuantType
    file_index: int
    file_offset: int
    n_bytes: int

    @property
    def n_elements(self) -> int:
        """Product of the shape."""
        return math.prod(self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of one output row."""
        return self.quant_type.row_bytes(self.shape[-1])


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model on disk: its files, its tensors by the file's own names, and its metadata.

    `file_format` is "gguf" (metadata: GGUF keys) or "safetensors" (metadata: the keys of config.json).
    """

    path: Path
    file_format: str
    files: tuple[Path, ...]
    file_sizes: tuple[int, ...]
    metadata: Mapping[str, object]
    tensors: Mapping[str, Tensor]
