"""Memory of long answers that nobody takes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from sipd.errors import ClientLimit, Overloaded
from sipd.server import unsent as module
from sipd.server.client_identity import ClientIdentity
from sipd.server.service import MODEL
from sipd.server.unsent import LONG_BYTES, MOST_BYTES, Unsent
from sipd.v1 import model_pb2
from tests.unit.server.fakes import WAIT_S, running
from tests.unit.server.http2 import HEADERS, raw_client

ONE, OTHER = ClientIdentity("ip:10.0.0.1", "ip:10.0.0.1"), ClientIdentity("ip:10.0.0.2", "ip:10.0.0.2")
UNIX = ClientIdentity("local:unix", "local", is_shared=True)
MIB = 1024**2


@pytest.fixture
def held() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_a_client_has_half_of_what_may_wait_and_another_the_rest(held: ExitStack) -> None:
    unsent = Unsent()
    for client in (ONE, OTHER):
        for _ in range(4):
            held.enter_context(unsent.hold(client, MIB))
        with pytest.raises(Overloaded), unsent.hold(client, MIB):
            pass


def test_a_client_above_its_half_is_told_the_numbers(held: ExitStack) -> None:
    unsent = Unsent()
    held.enter_context(unsent.hold(ONE, 3 * MIB))
    with pytest.raises(ClientLimit, match=f"not taken {3 * MIB} bytes of answers yet, {2 * MIB} more"):
        held.enter_context(unsent.hold(ONE, 2 * MIB))
    held.enter_context(unsent.hold(UNIX, 5 * MIB))


def test_an_answer_of_any_length_is_sent_while_nothing_waits() -> None:
    unsent = Unsent()
    for _ in range(2):
        with unsent.hold(ONE, 3 * MOST_BYTES), pytest.raises(Overloaded), unsent.hold(OTHER, LONG_BYTES + 1):
            pass


def test_short_answers_are_not_counted(held: ExitStack) -> None:
    unsent = Unsent()
    for _ in range(2 * MOST_BYTES // LONG_BYTES):
        held.enter_context(unsent.hold(ONE, LONG_BYTES))


def test_answers_that_nobody_reads_do_not_pile_up_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 80_000)
    message = model_pb2.TokenizeRequest(text="x" * 50_000)

    async def main() -> str:
        async with (
            asyncio.timeout(WAIT_S),
            running(tmp_path) as (server, channel),
            raw_client(server.target) as unread,
        ):
            unread.call(f"/{MODEL}/Tokenize", message.SerializeToString())
            await unread.until(HEADERS)
            method: Any = channel.unary_unary(f"/{MODEL}/Tokenize", model_pb2.TokenizeRequest.SerializeToString)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await method(message)
            assert await method(model_pb2.TokenizeRequest(text="short"))
            return str(caught.value.details())

    assert " bytes of answers are not taken yet" in asyncio.run(main())
