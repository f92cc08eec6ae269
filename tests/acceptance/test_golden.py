"""An F32 model says what it must say, token for token, from both file formats and through gRPC."""

from __future__ import annotations

import pytest

from tests.acceptance.daemons import running_daemon
from tests.acceptance.engines import ask, running_engine, settings
from tests.acceptance.models import stories_golden, stories_paths


@pytest.mark.parametrize("file_format", ["gguf", "safetensors"])
def test_all_golden_ids_come_through_grpc(file_format: str) -> None:
    golden = stories_golden()
    with running_daemon(stories_paths()[file_format]) as daemon:
        reply = daemon.ask(golden.prompt_ids, len(golden.greedy_ids))
    assert reply.ids == golden.greedy_ids


@pytest.mark.parametrize("file_format", ["gguf", "safetensors"])
def test_all_golden_ids_come_from_the_numpy_twin(file_format: str) -> None:
    golden = stories_golden()
    with running_engine(settings(stories_paths()[file_format], isa="numpy")) as engine:
        assert ask(engine, golden.prompt_ids, len(golden.greedy_ids)).ids == golden.greedy_ids


def test_all_golden_ids_come_when_every_token_is_streamed() -> None:
    golden = stories_golden()
    with running_engine(settings(stories_paths()["gguf"], pin=False, rows_per_pass=1, max_requests=1)) as engine:
        assert ask(engine, golden.prompt_ids, len(golden.greedy_ids)).ids == golden.greedy_ids
