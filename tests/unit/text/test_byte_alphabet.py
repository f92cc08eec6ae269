"""GPT-2's byte alphabet."""

from __future__ import annotations

import pytest

from sipd.text.byte_alphabet import BYTE_OF_CHAR, piece_bytes
from sipd.text.spm import byte_of


def test_every_byte_has_one_character_and_ascii_letters_stand_for_themselves() -> None:
    assert sorted(BYTE_OF_CHAR.values()) == list(range(256))
    assert (BYTE_OF_CHAR["a"], BYTE_OF_CHAR["\u0120"], BYTE_OF_CHAR["\u0100"]) == (97, 32, 0)


def test_a_character_outside_the_alphabet_stands_for_itself() -> None:
    assert piece_bytes("\u0120a日") == b" a" + "日".encode()


@pytest.mark.parametrize(
    ("piece", "byte"),
    [("<0x41>", 0x41), ("<0xff>", 255), ("<0xZZ>", None), ("<0x4>", None), ("a", None), ("(0x41)", None)],
)
def test_only_byte_tokens_have_a_byte_value(piece: str, byte: int | None) -> None:
    assert byte_of(piece) == byte
