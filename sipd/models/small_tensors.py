"""Reads norms, biases and frequency factors: the tensors that stay in memory, as native f32 arrays."""

from __future__ import annotations

import ctypes

from sipd.errors import DataLoss, StorageFault
from sipd.weights.reader import WeightFiles, read_exact
from sipd.weights.tensor_table import Tensor


def read_f32(library: ctypes.CDLL, files: WeightFiles, tensor: Tensor) -> ctypes.Array[ctypes.c_float]:
    """The numbers of a small tensor; raises StorageFault or DataLoss."""
    path = str(files.paths[tensor.file_index])
    try:
        raw = read_exact(files.fds[tensor.file_index], tensor.file_offset, tensor.n_bytes)
    except EOFError as error:
        raise DataLoss(path, tensor.file_offset, f"tensor {tensor.name}: {error}") from error
    except OSError as error:
        raise StorageFault(path, tensor.file_offset, f"tensor {tensor.name}: {error.strerror}") from error
    out = (ctypes.c_float * tensor.n_elements)()
    library.sipd_dequantize_row(tensor.quant_type.type_id, raw, tensor.n_elements, out)
    return out
