"""The daemon under clients that behave badly, and at its end: groups E to G of the field's known faults."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sipd.v1 import generation_pb2 as pb
from tests.acceptance.conftest import Figure
from tests.acceptance.daemons import Daemon, next_ids, read_reply, request_for, running_daemon
from tests.acceptance.prompts import Prompts

GARBAGE: dict[str, list[Any]] = {
    "sampling.temperature": [math.nan, math.inf, -math.inf, -1.0],
    "sampling.top_p": [0.0, 2.0, math.nan, -0.5],
    "sampling.min_p": [math.nan, 1.5, -1.0],
    "sampling.top_k": [-5],
    "sampling.repetition_penalty": [0.0, -1.0, math.nan],
    "sampling.presence_penalty": [math.inf, 3.0],
    "sampling.frequency_penalty": [-math.inf, math.nan],
    "sampling.logprobs": [1000],
}


@pytest.fixture(scope="module")
def daemon(smollm2: Path) -> Iterator[Daemon]:
    """A daemon that runs four requests and lets eight wait."""
    with running_daemon(smollm2, "--max-requests", "4", "--max-queued", "8", "--budget", "400M") as running:
        yield running


def details(error: grpc.RpcError) -> status_pb2.Status:
    """Returns the google.rpc status of a failed call."""
    metadata = getattr(error, "trailing_metadata")()  # noqa: B009 - the stubs know it on calls only
    return status_pb2.Status.FromString(dict(metadata)["grpc-status-details-bin"])


def test_garbage_options_are_refused_by_name_and_another_stream_goes_on(daemon: Daemon, prompts: Prompts) -> None:
    wanted = daemon.ask(prompts.long(40), 120)
    stream = daemon.start(request_for(prompts.long(40), 120))
    ids = next_ids(stream)
    for name, values in GARBAGE.items():
        for value in values:
            sampling = pb.Sampling(**{name.removeprefix("sampling."): value})
            with pytest.raises(grpc.RpcError) as error:
                daemon.ask(prompts.long(10), 4, sampling)
            assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert name in str(error.value.details())
    reply = read_reply(stream)
    assert ids + reply.ids == wanted.ids


def test_a_temperature_next_to_zero_is_greedy(daemon: Daemon, prompts: Prompts) -> None:
    greedy = daemon.ask(prompts.long(40), 12).ids
    assert daemon.ask(prompts.long(40), 12, pb.Sampling(temperature=1e-12, seed=3)).ids == greedy


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_exactly_max_tokens_come(daemon: Daemon, prompts: Prompts, max_tokens: int) -> None:
    reply = daemon.ask(prompts.long(12), max_tokens)
    assert len(reply.ids) == reply.finished.usage.completion_tokens == max_tokens
    assert reply.finished.usage.prompt_tokens == 12
    assert reply.finished.reason == pb.FINISH_REASON_LENGTH


def test_a_hundred_requests_at_once_are_served_or_told_to_come_back(
    daemon: Daemon, prompts: Prompts, figure: Figure
) -> None:
    wanted = daemon.ask(prompts.long(20), 10).ids
    gate = threading.Barrier(100)

    def one(_index: int) -> list[int] | grpc.RpcError:
        gate.wait(60.0)
        try:
            return daemon.ask(prompts.long(20), 10).ids
        except grpc.RpcError as error:
            return error

    with ThreadPoolExecutor(100) as pool:
        results = list(pool.map(one, range(100)))
    refused = [each for each in results if isinstance(each, grpc.RpcError)]
    served = [each for each in results if not isinstance(each, grpc.RpcError)]
    figure(f"100 requests at once, 4 run and 8 wait: {len(served)} served, {len(refused)} refused")
    assert len(served) >= 12
    assert all(ids == wanted for ids in served)
    assert {error.code() for error in refused} <= {grpc.StatusCode.RESOURCE_EXHAUSTED}
    for error in refused:
        assert any(detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR) for detail in details(error).details)
    status = daemon.settled_status()
    assert (status.queue.active, status.queue.queued, status.memory.kv_used_bytes) == (0, 0, 0)
    assert daemon.ask(prompts.long(20), 10).ids == wanted


def test_a_reader_that_stalls_delays_nobody(daemon: Daemon, prompts: Prompts) -> None:
    wanted = daemon.ask(prompts.long(25), 150).ids
    stalled = daemon.start(request_for(prompts.long(25), 150))
    first = next_ids(stalled)
    assert daemon.ask(prompts.long(25), 150).ids == wanted
    assert first + read_reply(stalled).ids == wanted


def test_health_is_answered_during_a_prefill(smollm2: Path, prompts: Prompts, figure: Figure) -> None:
    with running_daemon(
        smollm2, "--context", "2048", "--budget", "400M", "--threads", "1", isa="portable"
    ) as slow_daemon:
        health = health_pb2_grpc.HealthStub(slow_daemon.channel)
        has_token = threading.Event()
        call = slow_daemon.start(request_for(prompts.long(32), 1))

        def read() -> None:
            read_reply(call)
            has_token.set()

        reader = threading.Thread(target=read)
        reader.start()
        n_answers = 0
        while not has_token.wait(0.05):
            answer = health.Check(health_pb2.HealthCheckRequest(), timeout=10.0)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            n_answers += 1
        reader.join()
    figure(f"health answers during one prefill of 32 tokens with portable kernels: {n_answers}")
    assert n_answers > 3


def test_sigterm_lets_a_live_stream_finish(smollm2: Path, prompts: Prompts) -> None:
    with running_daemon(smollm2, "--context", "512") as stopping:
        wanted = stopping.ask(prompts.long(20), 100).ids
        call = stopping.start(request_for(prompts.long(20), 100))
        ids = next_ids(call)
        stopping.process.send_signal(signal.SIGTERM)
        stopping.wait_for_line("SIGTERM")
        assert ids + read_reply(call).ids == wanted
        assert stopping.process.wait(60.0) == 0
        assert not stopping.socket.exists()


def test_sigterm_without_grace_ends_a_live_stream_as_unavailable(smollm2: Path, prompts: Prompts) -> None:
    with running_daemon(smollm2, "--pin", "off", "--grace-s", "0", "--context", "2048") as stopping:
        request = request_for(prompts.long(20), 1500)
        request.request_id = "cut"
        call = stopping.start(request)
        next_ids(call)
        stopping.process.send_signal(signal.SIGTERM)
        with pytest.raises(grpc.RpcError) as error:
            read_reply(call)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        assert stopping.process.wait(60.0) == 0
        assert stopping.record("cut")["finish_reason"] == "cancelled"
        assert not stopping.socket.exists()
