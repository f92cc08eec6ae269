"""Byte sizes as people write them: parsed and printed here and nowhere else.

K, M, G, T and KiB, MiB, … are powers of 1024, as in systemd unit files; kB, MB, GB, TB are powers of 1000.
"""

from __future__ import annotations

import re

_UNITS = {"": 1, "b": 1}
_UNITS |= {letter: 1024**power for power, letter in enumerate("kmgt", start=1)}
_UNITS |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", start=1)}
_UNITS |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", start=1)}

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII)
_MAX_SIZE = 2**62  # anything above is a mistake, and would overflow C arithmetic


def parse_size(text: str) -> int:
    """Returns the bytes that `text` means (`512M`, `1.5G`, `300MB`, `123456`); raises ValueError."""
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"found {text!r}, wanted a size such as 512M, 1.5G or a number of bytes")
    n_bytes = int(float(match[1]) * _UNITS[match[2]]) if "." in match[1] else int(match[1]) * _UNITS[match[2]]
    if n_bytes > _MAX_SIZE:
        raise ValueError(f"found {text!r}, wanted at most {format_size(_MAX_SIZE)}")
    return n_bytes


def format_size(n_bytes: int) -> str:
    """Returns `n_bytes` with at most one decimal in the largest binary unit that keeps it above 1."""
    size = float(n_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{n_bytes} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def setting_size(n_bytes: int) -> str:
    """Returns the smallest whole-MiB setting that is at least `n_bytes`, as one would type it (`312M`)."""
    return f"{-(-n_bytes // 1024**2)}M"
