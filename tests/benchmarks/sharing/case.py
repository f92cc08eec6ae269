"""What every case is given: the model files, the folder, and how much is measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MB_S_200 = 200_000_000
MB_S_90 = 90_000_000
MIB = 1024**2


@dataclass(frozen=True, slots=True)
class Setting:
    """`tokens` and `repetitions` None: as the case thinks right."""

    work: Path
    smollm2: Path
    target: Path | None = None
    draft: Path | None = None
    tokens: int | None = None
    repetitions: int | None = None
