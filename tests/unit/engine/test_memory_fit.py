"""The engine between passes, asked to give memory back: who keeps pages, and who is refused meanwhile."""

from __future__ import annotations

import pytest

from sipd.engine.request import FinishReason
from sipd.errors import OverBudget
from tests.unit.engine.fake_executor import rig


def everything() -> int:
    return 1 << 40


def test_pages_of_a_request_that_waits_are_not_given_back() -> None:
    with rig(n_pages=12, max_active=1) as one:
        one.executor.hold()
        _, first = one.submit(3, 4)
        one.executor.wait_for_pass()
        _, second = one.submit(150, 4)  # five pages
        one.engine.shrink(everything)
        one.executor.let_go()
        one.executor.wait_for_pass()
        assert one.pool.n_pages == 5
        one.executor.free()
        assert first.reason() is second.reason() is FinishReason.LENGTH


def test_a_request_that_the_shrunken_pool_never_holds_is_refused_until_it_has_grown_again() -> None:
    with rig(n_pages=12) as one:
        one.engine.shrink(everything)
        _, sink = one.submit(3, 4)
        assert sink.reason() is FinishReason.LENGTH
        assert one.pool.n_pages == 1
        with pytest.raises(OverBudget, match=r"need 2 KV pages.*holds 1"):
            one.submit(40, 4)
        one.engine.grow(everything)
        assert one.submit(3, 4)[1].reason() is FinishReason.LENGTH
        assert one.pool.n_pages == 12
        assert one.submit(40, 4)[1].reason() is FinishReason.LENGTH
