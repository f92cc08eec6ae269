"""File descriptors: the limit is raised at the start, and one that cannot be enough is refused."""

from __future__ import annotations

import resource

import pytest

from sipd.errors import ConfigError
from sipd.server.descriptors import require_descriptors

NOFILE = resource.RLIMIT_NOFILE


class Limits:
    """The kernel's two limits, in memory."""

    def __init__(self, soft: int, hard: int, *, is_locked: bool = False) -> None:
        self.pair = (soft, hard)
        self._is_locked = is_locked

    def get(self, which: int) -> tuple[int, int]:
        assert which == NOFILE
        return self.pair

    def set(self, which: int, pair: tuple[int, int]) -> None:
        assert which == NOFILE
        if self._is_locked:
            raise OSError(1, "Operation not permitted")
        self.pair = pair


def install(monkeypatch: pytest.MonkeyPatch, limits: Limits) -> Limits:
    monkeypatch.setattr(resource, "getrlimit", limits.get)
    monkeypatch.setattr(resource, "setrlimit", limits.set)
    return limits


def test_the_soft_limit_is_raised_to_the_hard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = install(monkeypatch, Limits(72, 4096))
    require_descriptors(2)
    assert limits.pair == (4096, 4096)


@pytest.mark.parametrize(("hard", "is_enough"), [(191, False), (192, True)])
def test_a_hard_limit_below_what_the_addresses_take_is_refused_with_both_numbers(
    monkeypatch: pytest.MonkeyPatch, hard: int, is_enough: bool
) -> None:
    install(monkeypatch, Limits(72, hard))
    if is_enough:
        require_descriptors(2)
        return
    with pytest.raises(ConfigError, match=r"up to 192 open files, the limit is 191 \(LimitNOFILE="):
        require_descriptors(2)


def test_where_the_limit_cannot_be_raised_the_soft_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Limits(128, 4096, is_locked=True))
    require_descriptors(1)
    with pytest.raises(ConfigError, match="the limit is 128"):
        require_descriptors(2)


def test_no_limit_at_all_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Limits(72, resource.RLIM_INFINITY))
    require_descriptors(100)
