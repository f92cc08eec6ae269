"""Rotary frequencies: base, scaling by kind, and the frequency factors of a file.

The powers are taken in decimal arithmetic and rounded once, so that every machine gets the same binary32 numbers.
Sources: Su et al. 2021 (RoFormer); the llama3 rule as in Meta's release of Llama 3.1.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence

from sipd.errors import UnsupportedModel
from sipd.models.fields import positive_number


def inverse_frequencies(theta: float, n_rot: int, where: str = "rope") -> list[float]:
    """Frequencies theta ** (-2i / n_rot) for i < n_rot / 2, each the nearest binary32 number.

    Raises UnsupportedModel when one leaves the range of binary32.
    """
    from decimal import Decimal, localcontext  # noqa: PLC0415 - half a megabyte that only loading needs

    with localcontext() as context:
        context.prec = 40
        log_theta = Decimal(theta).ln()
        powers = ((log_theta * Decimal(-2 * i) / Decimal(n_rot)).exp() for i in range(n_rot // 2))
        frequencies = [to_f32(float(power)) for power in powers]
    check_frequencies(frequencies, where)
    return frequencies


def to_f32(value: float) -> float:
    """`value` rounded to binary32; infinite when it is beyond that."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def check_frequencies(frequencies: Sequence[float], where: str) -> None:
    """Raises UnsupportedModel unless every frequency is a positive binary32 number."""
    for frequency in frequencies:
        if positive_number(frequency) is None:
            raise UnsupportedModel(f"{where}: a rope frequency of {frequency}, wanted a positive binary32 number")


def apply_factors(frequencies: Sequence[float], factors: Sequence[float], where: str) -> list[float]:
    """Frequencies divided by the factors of the tensor `where` (rope_freqs of a GGUF); raises UnsupportedModel."""
    for factor in factors:
        if positive_number(factor) is None:
            raise UnsupportedModel(f"{where}: holds {factor}, wanted positive numbers")
    scaled = [to_f32(frequency / factor) for frequency, factor in zip(frequencies, factors, strict=True)]
    check_frequencies(scaled, where)
    return scaled


def apply_scaling(frequencies: Sequence[float], scaling: Mapping[str, object], where: str) -> list[float]:
    """Frequencies under a `rope_scaling` description; raises UnsupportedModel for a kind that sipd does not know."""
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind in ("default", "none"):
        return list(frequencies)
    if kind == "linear":
        factor = _number(scaling, "factor", where)
        scaled = [to_f32(frequency / factor) for frequency in frequencies]
        check_frequencies(scaled, where)
        return scaled
    if kind == "llama3":
        return _llama3(frequencies, scaling, where)
    raise UnsupportedModel(f"{where}: rope scaling {kind!r} is not supported; wanted none, linear or llama3")


def _llama3(frequencies: Sequence[float], scaling: Mapping[str, object], where: str) -> list[float]:
    """Long wavelengths are divided by `factor`, short ones kept, those between blended."""
    factor = _number(scaling, "factor", where)
    low = _number(scaling, "low_freq_factor", where)
    high = _number(scaling, "high_freq_factor", where)
    original = _number(scaling, "original_max_position_embeddings", where)
    if high <= low:
        raise UnsupportedModel(f"{where}: high_freq_factor {high} must exceed low_freq_factor {low}")
    result = []
    for frequency in frequencies:
        wavelength = 2 * math.pi / frequency
        if wavelength < original / high:
            result.append(frequency)
        elif wavelength > original / low:
            result.append(to_f32(frequency / factor))
        else:
            smooth = (original / wavelength - low) / (high - low)
            result.append(to_f32((1 - smooth) * frequency / factor + smooth * frequency))
    check_frequencies(result, where)
    return result


def _number(scaling: Mapping[str, object], key: str, where: str) -> float:
    value = scaling.get(key)
    number = positive_number(value)
    if number is None:
        raise UnsupportedModel(f"{where}: rope_scaling.{key} is {value!r}, wanted a positive number")
    return number
