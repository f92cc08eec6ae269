from __future__ import annotations

import pytest

from sipd.size import format_size, parse_size, setting_size


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("512M", 512 * 1024**2),
        ("1.5G", 1536 * 1024**2),
        ("1k", 1024),
        ("2 MiB", 2 * 1024**2),
        ("300MB", 300_000_000),
        ("123456", 123456),
        ("0", 0),
        ("7b", 7),
    ],
)
def test_a_size_is_read_as_people_mean_it(text: str, n_bytes: int) -> None:
    assert parse_size(text) == n_bytes


@pytest.mark.parametrize("text", ["", "M", "-1M", "12X", "1e9", "1.M", "inf", "0x10", "٣M", "9999999T"])
def test_what_is_no_size_is_refused_with_what_was_found(text: str) -> None:
    with pytest.raises(ValueError, match=r"found .* wanted"):
        parse_size(text)


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (98_362_432, "93.8 MiB"),
        (3 << 30, "3.0 GiB"),
        (5 << 40, "5.0 TiB"),
    ],
)
def test_a_size_is_printed_in_its_largest_unit(n_bytes: int, text: str) -> None:
    assert format_size(n_bytes) == text


def test_a_suggested_setting_is_never_below_what_is_needed() -> None:
    assert parse_size(setting_size(100 * 1024**2 + 1)) == 101 * 1024**2
