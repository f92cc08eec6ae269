"""Typed access to a checkpoint's metadata: every fault names the key, what was found and what was wanted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sipd.errors import UnsupportedModel

MAX_DIMENSION = 1 << 24  # far above any model; keeps products of two dimensions exact


def positive_number(value: object) -> float | None:
    """`value` as a positive finite number, or None when it is none."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer beyond binary64
        return None
    return number if math.isfinite(number) and number > 0 else None


@dataclass(frozen=True, slots=True)
class Fields:
    """Metadata of `where`, read key by key."""

    values: Mapping[str, object]
    where: str

    def integer(self, key: str, default: int | None = None, *, low: int = 1, high: int = MAX_DIMENSION) -> int:
        """An integer within [low, high]; raises UnsupportedModel."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise UnsupportedModel(f"{self.where}: {key} is {value!r}, wanted an integer from {low} to {high}")
        return value

    def uniform_integer(self, key: str, n_layers: int, default: int, *, high: int = MAX_DIMENSION) -> int:
        """An integer within [1, high], or the one that an array holds for each of n_layers; raises UnsupportedModel."""
        value = self.values.get(key)
        if isinstance(value, str) or not isinstance(value, Sequence):
            return self.integer(key, default, high=high)
        entries = set(value) if len(value) == n_layers else set()
        if len(entries) != 1:
            raise UnsupportedModel(
                f"{self.where}: {key} is an array of {len(value)} values, wanted {n_layers} that are all the same"
            )
        return Fields({key: entries.pop()}, self.where).integer(key, high=high)

    def number(self, key: str, default: float | None = None) -> float:
        """A positive finite number; raises UnsupportedModel."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        number = positive_number(value)
        if number is None:
            raise UnsupportedModel(f"{self.where}: {key} is {value!r}, wanted a positive number")
        return number

    def refuse_unless(self, key: str, accepted: tuple[object, ...]) -> None:
        """Raises UnsupportedModel when `key` is there with a value that changes the mathematics."""
        value = self.values.get(key)
        if value is not None and value not in accepted:
            raise UnsupportedModel(f"{self.where}: {key} is {value!r}, which sipd does not compute")
