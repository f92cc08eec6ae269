"""Typed access to a checkpoint's metadata: every fault names the key, what was found and what was wanted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sipd.errors import UnsupportedModel

MAX_DIMENSION = 1 << 24  # far above any model; keeps products of two dimensions exact


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

    def number(self, key: str, default: float | None = None) -> float:
        """A positive finite number; raises UnsupportedModel."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(float(value)) or float(value) <= 0:  # type: ignore[arg-type]
            raise UnsupportedModel(f"{self.where}: {key} is {value!r}, wanted a positive number")
        return float(value)  # type: ignore[arg-type]

    def refuse_unless(self, key: str, accepted: tuple[object, ...]) -> None:
        """Raises UnsupportedModel when `key` is there with a value that changes the mathematics."""
        value = self.values.get(key)
        if value is not None and value not in accepted:
            raise UnsupportedModel(f"{self.where}: {key} is {value!r}, which sipd does not compute")
