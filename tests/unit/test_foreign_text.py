"""Text of unknown origin, made fit to be shown and to be sent."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from sipd.foreign_text import MAX_HEADER_BYTES, printable, sendable

UNRESERVED = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")  # what gRPC leaves as it is
GAP = " [...] "


@pytest.mark.parametrize("char", ["a", "é", "模", "🌿", "%", "\n", "\x00", "\udcff"])
def test_what_is_sent_fits_the_header_as_grpc_encodes_it(char: str) -> None:
    sent = sendable(f"model '{char * 5000}' is not served")
    assert len(quote(sent, safe=UNRESERVED)) <= MAX_HEADER_BYTES
    assert sent.startswith("model '")
    assert sent.endswith("' is not served")
    assert GAP in sent


@pytest.mark.parametrize("text", ["", "plain", "Grüße 🌿", "a" * MAX_HEADER_BYTES, "模" * (MAX_HEADER_BYTES // 9)])
def test_what_fits_is_left_as_it_is(text: str) -> None:
    assert sendable(text) == text


def test_one_character_too_many_is_cut_by_its_encoded_length() -> None:
    assert GAP in sendable("模" * (MAX_HEADER_BYTES // 9 + 1))
    assert GAP in sendable("a" * (MAX_HEADER_BYTES + 1))


@pytest.mark.parametrize("char", ["a", "é", "模", "🌿", "\udcff"])
def test_what_was_cut_once_stays_as_it_is(char: str) -> None:
    once = sendable(char * 5000)
    assert sendable(once) == once


def test_bytes_that_are_no_utf_8_are_told() -> None:
    assert sendable("m\udcff.gguf") == r"m\udcff.gguf"


def test_what_would_end_a_line_or_steer_a_terminal_is_shown_as_an_escape() -> None:
    assert printable("a\nb\x1b[31m\u202e\udcff é") == r"a\nb\x1b[31m\u202e\udcff é"
