"""How fast the kernels take weights: one row against tiles of the model's own type, without the model.

Invariant: buffers are a few MB, aligned as the ring's, and freed when the measurement ends.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from collections import Counter
from dataclasses import dataclass

from sipd.kernels import binding
from sipd.kernels.operations import MatmulArguments, Operations
from sipd.models.program import Program
from sipd.weights.tensor_table import QuantType

MEASURE_S = 0.15
_TILE_BYTES = 1 << 20
_N_TILES = 8  # beyond the second cache level of the boards, so that weights come from memory
_Q8_BYTES = 48  # sipd_q8_block: 32 values, a scale and three sums
_SCRATCH_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class ComputeRate:
    """Bytes of weights a second that one thread multiplies with one row."""

    isa: str
    type_name: str
    bytes_per_s: float


def measure_compute(
    library: ctypes.CDLL, program: Program, isa: str, measure_s: float = MEASURE_S
) -> ComputeRate | None:
    """Returns the rate of the type that most weight bytes have; None for the NumPy twin. Blocks for `measure_s`."""
    if isa == "numpy" or not library.sipd_isa_count():
        return None
    index = binding.isa_index(library, isa)
    ops: Operations = library.sipd_isa_ops(index).contents
    quant_type, n_in = _largest(program)
    row_bytes = quant_type.row_bytes(n_in)
    n_panels = max(1, _TILE_BYTES // (row_bytes * binding.PANEL_ROWS))
    n_out = n_panels * binding.PANEL_ROWS
    tile_bytes = n_out * row_bytes
    weights, scratch = mmap.mmap(-1, _N_TILES * tile_bytes + _TILE_BYTES), mmap.mmap(-1, _SCRATCH_BYTES)
    inputs, outputs = mmap.mmap(-1, n_in * (4 + _Q8_BYTES)), mmap.mmap(-1, 4 * n_out)
    arguments = MatmulArguments(
        type=quant_type.type_id,
        n_in=n_in,
        n_out=n_out,
        row_bytes=row_bytes,
        xq=_address(inputs) + 4 * n_in,
        xf=_address(inputs),
        xf_stride=n_in,
        n_rows=1,
        out=_address(outputs),
        out_stride=n_out,
    )
    first, place = _address(weights), _address(scratch)
    n_tiles = 0
    began = time.perf_counter()
    while (seconds := time.perf_counter() - began) < measure_s or n_tiles < _N_TILES:
        arguments.w = first + n_tiles % _N_TILES * tile_bytes
        ops.matmul(ctypes.byref(arguments), 0, n_panels, place)
        n_tiles += 1
    return ComputeRate(library.sipd_isa_name(index).decode(), quant_type.name, n_tiles * tile_bytes / seconds)


def _largest(program: Program) -> tuple[QuantType, int]:
    """The type with the most bytes in products, and the inputs of its first matrix."""
    n_bytes: Counter[QuantType] = Counter()
    n_in: dict[QuantType, int] = {}
    for step in program.product_steps():
        for product in step.products:
            weight = product.weight
            n_bytes[weight.quant_type] += weight.shape[0] * weight.row_bytes
            n_in.setdefault(weight.quant_type, weight.shape[1])
    quant_type = max(n_bytes, key=lambda each: n_bytes[each])
    return quant_type, n_in[quant_type]


def _address(buffer: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
