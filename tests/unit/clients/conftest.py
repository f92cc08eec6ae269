"""The fake daemon as a fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.clients.fake_server import Fake, start


@pytest.fixture
def fake() -> Iterator[Fake]:
    """A fake daemon on a free loopback port."""
    servicer = Fake()
    server = start(servicer, "127.0.0.1:0")
    yield servicer
    servicer.release.set()
    server.stop(None).wait()
