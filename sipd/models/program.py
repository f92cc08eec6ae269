"""A model as a program: the steps of one pass, in order, that the kernels and the NumPy twin both execute."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from sipd.models.hyperparameters import Hyperparameters
from sipd.weights.tensor_table import Tensor

HEAD_LAYER = -1  # the layer number of the steps that work on the selected rows only


class Buffer(enum.IntEnum):
    """Where the outputs of a product go; the numbers are those of the kernels' ABI."""

    X = 0  # the residual stream, (rows, d_model)
    Q = 1
    K = 2
    V = 3
    GATE = 4
    UP = 5
    LOGITS = 6


@dataclass(frozen=True, slots=True)
class Product:
    """out = weight @ input (+ bias); `adds` joins the residual stream instead of replacing the buffer."""

    weight: Tensor
    buffer: Buffer
    bias: Tensor | None = None
    adds: bool = False


@dataclass(frozen=True, slots=True)
class Norm:
    """input = rms_norm(x) * weight; of the selected rows when layer is HEAD_LAYER."""

    weight: Tensor
    layer: int


@dataclass(frozen=True, slots=True)
class Products:
    """Products that share the input."""

    products: tuple[Product, ...]
    layer: int


@dataclass(frozen=True, slots=True)
class Attention:
    """Rotates q and k, stores k and v, input = attention(q, keys, values)."""

    layer: int


@dataclass(frozen=True, slots=True)
class Silu:
    """input = silu(gate) * up."""

    layer: int


@dataclass(frozen=True, slots=True)
class Select:
    """Picks the rows that need logits."""

    layer: int = HEAD_LAYER


Step = Norm | Products | Attention | Silu | Select


@dataclass(frozen=True, slots=True)
class Program:
    """One pass of one model."""

    hyperparameters: Hyperparameters
    embedding: Tensor
    steps: tuple[Step, ...]

    def product_steps(self) -> Iterator[Products]:
        """The steps that consume weights, in order; the last one is the head."""
        return (step for step in self.steps if isinstance(step, Products))

    def small_tensors(self) -> Iterator[Tensor]:
        """Norm weights and biases: they stay in memory."""
        for step in self.steps:
            if isinstance(step, Norm):
                yield step.weight
            elif isinstance(step, Products):
                yield from (product.bias for product in step.products if product.bias is not None)

    @property
    def is_tied(self) -> bool:
        """Whether the head is the embedding."""
        return self.head.name == self.embedding.name

    @property
    def head(self) -> Tensor:
        """The output head's weight."""
        *_, last = self.product_steps()
        return last.products[0].weight
