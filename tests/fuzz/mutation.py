"""Mutates seeds at random: what fuzzes the targets where atheris cannot be had, and in every run of the tests.

Invariant: the same seeds, dictionary and number give the same inputs.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence

from tests.fuzz.bounds import MAX_INPUT_BYTES

_NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 1 << 31, (1 << 31) - 1, (1 << 32) - 1, 1 << 62, (1 << 64) - 1)
_DIGITS = (b"0", b"-1", b"1e999", b"9999999999", b"18446744073709551616", b"0.5", b"true", b"null", b'""', b"[]", b"{}")


def mutations(seeds: Sequence[bytes], dictionary: Sequence[bytes], seed: int) -> Iterator[bytes]:
    """Yields inputs without end, each a seed changed one to five times, never longer than MAX_INPUT_BYTES."""
    chance = random.Random(seed)
    while True:
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, 5)):
            _change(data, seeds, dictionary, chance)
        yield bytes(data[:MAX_INPUT_BYTES])


def _change(data: bytearray, seeds: Sequence[bytes], dictionary: Sequence[bytes], chance: random.Random) -> None:
    # mostly near the beginning, where headers are
    at = min(chance.randrange(len(data) + 1), chance.randrange(len(data) + 1))
    end = min(len(data), at + chance.choice((1, 2, 4, 8, 32, 1024)))
    match chance.randrange(8):
        case 0 if at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        case 1:
            data[at:end] = chance.randbytes(end - at)
        case 2:
            del data[at:end]
        case 3:
            data[at:at] = data[at:end] * chance.choice((1, 2, 100))
        case 4:
            number, form = chance.choice(_NUMBERS), chance.choice("<>") + chance.choice("BHIQ")
            value = struct.pack(form, number % (1 << 8 * struct.calcsize(form)))
            data[at : at + len(value)] = value
        case 5:
            word = chance.choice((*dictionary, *_DIGITS))
            data[at : chance.choice((at, at + len(word)))] = word
        case 6:
            other = chance.choice(seeds)
            start = chance.randrange(len(other) + 1)
            data[at:end] = other[start : start + chance.choice((4, 32, 1024))]
        case _:
            del data[chance.choice((at, max(at, len(data) - 64))) :]
