"""Takes the tensors of a checkpoint role by role, with their shapes; what nobody takes is a fault (promise 5)."""

from __future__ import annotations

from sipd.errors import TensorMismatch, UnsupportedModel
from sipd.weights.tensor_table import Checkpoint, QuantType, Tensor


class TensorRoles:
    """Hands out tensors by name and remembers which are left."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._left = dict(checkpoint.tensors)

    def matrix(self, name: str, n_out: int, n_in: int) -> Tensor:
        """The (n_out, n_in) matrix `name`; raises TensorMismatch."""
        tensor = self._take(name, (n_out, n_in))
        if n_in % tensor.quant_type.block_size:
            raise TensorMismatch(
                f"{self._where(name)}: rows of {n_in} are not whole {tensor.quant_type.name} blocks "
                f"of {tensor.quant_type.block_size}"
            )
        return tensor

    def vector(self, name: str, n: int) -> Tensor:
        """The vector `name` of n numbers in F32, F16 or BF16; raises TensorMismatch."""
        tensor = self._take(name, (n,))
        if tensor.quant_type not in (QuantType.F32, QuantType.F16, QuantType.BF16):
            raise UnsupportedModel(f"{self._where(name)}: a vector of type {tensor.quant_type.name}, wanted F32")
        return tensor

    def optional_vector(self, name: str, n: int) -> Tensor | None:
        """The vector, or None when the file has none."""
        return self.vector(name, n) if name in self._left else None

    def has(self, name: str) -> bool:
        """Whether the file has `name` and nobody took it yet."""
        return name in self._left

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor that must be there; raises TensorMismatch."""
        if name not in self._left:
            raise TensorMismatch(f"{self._where(name)}: missing")
        return self._left[name].shape

    def ignore(self, name: str) -> None:
        """Drops a tensor that is known not to matter for the result."""
        self._left.pop(name, None)

    def finish(self) -> None:
        """Raises TensorMismatch when tensors are left over."""
        if self._left:
            names = sorted(self._left)
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            raise TensorMismatch(
                f"{self._checkpoint.path}: {len(names)} tensors that this architecture does not use: "
                f"{', '.join(names[:5])}{more}"
            )

    def _take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        found = self.shape(name)
        if found != shape:
            raise TensorMismatch(f"{self._where(name)}: shape {found}, wanted {shape}")
        return self._left.pop(name)

    def _where(self, name: str) -> str:
        return f"{self._checkpoint.path}: tensor {name}"
