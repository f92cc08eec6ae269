"""ModelService, StatusService, health and reflection over a real socket."""

# ruff: noqa: ANN401 - grpc's channels and calls are untyped

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from sipd.config import Config
from sipd.server import service
from sipd.server.service import GENERATION, MODEL, STATUS
from sipd.server.service_state import DaemonState
from sipd.v1 import generation_pb2, model_pb2, status_pb2
from tests.unit.server.calls import run
from tests.unit.server.fakes import END_ID, WAIT_S, FakeEngine, Running, rest


async def unary(channel: grpc.aio.Channel, method: str, request: Any, response: Any) -> Any:
    call: Any = channel.unary_unary(method, type(request).SerializeToString, response.FromString)
    return await call(request, timeout=WAIT_S)


def one(folder: Path, method: str, request: Any, response: Any, **options: Any) -> Any:
    return run(folder, lambda _server, channel: unary(channel, method, request, response), **options)


def test_every_method_of_the_contract_is_served() -> None:
    source = Path(service.__file__).read_text()
    for module in (generation_pb2, model_pb2, status_pb2):
        for descriptor in module.DESCRIPTOR.services_by_name.values():
            assert descriptor.full_name in (GENERATION, MODEL, STATUS)
            for method in descriptor.methods:
                assert f'"{method.name}":' in source


def test_the_model_is_described_with_limits_and_capabilities(tmp_path: Path) -> None:
    found = one(tmp_path, f"/{MODEL}/GetModel", model_pb2.GetModelRequest(), model_pb2.GetModelResponse).model
    assert (found.name, found.architecture, found.n_layers, found.context_tokens) == ("tiny", "llama", 30, 64)
    assert list(found.end_token_ids) == [END_ID]
    assert (found.quants[0].type, found.files[0].header_sha256) == ("Q4_1", "ab" * 32)
    assert (found.limits.max_prompt_bytes, found.limits.max_queued, found.limits.default_max_tokens) == (
        1048576,
        32,
        256,
    )
    assert (found.capabilities.has_chat_template, found.capabilities.accepts_text) == (True, True)
    assert found.capabilities.isa == "portable"


def test_without_a_tokenizer_the_model_says_that_it_takes_no_text(tmp_path: Path) -> None:
    request = model_pb2.ListModelsRequest()
    found = one(tmp_path, f"/{MODEL}/ListModels", request, model_pb2.ListModelsResponse, has_text=False).models
    assert [each.capabilities.accepts_text for each in found] == [False]


def test_text_is_tokenised_and_detokenised(tmp_path: Path) -> None:
    ids = one(tmp_path, f"/{MODEL}/Tokenize", model_pb2.TokenizeRequest(text="AB"), model_pb2.TokenizeResponse).ids
    assert list(ids) == [65, 66]
    request = model_pb2.DetokenizeRequest(ids=[65, 66])
    assert one(tmp_path, f"/{MODEL}/Detokenize", request, model_pb2.DetokenizeResponse).text == "AB"


@pytest.mark.parametrize(
    ("method", "request_message", "response", "code"),
    [
        ("GetModel", model_pb2.GetModelRequest(model="x"), model_pb2.GetModelResponse, grpc.StatusCode.NOT_FOUND),
        (
            "Detokenize",
            model_pb2.DetokenizeRequest(ids=[200]),
            model_pb2.DetokenizeResponse,
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (
            "Tokenize",
            model_pb2.TokenizeRequest(text="x" * 1_100_000),
            model_pb2.TokenizeResponse,
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
    ],
)
def test_what_cannot_be_answered_has_its_status(
    tmp_path: Path, method: str, request_message: Any, response: Any, code: grpc.StatusCode
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        one(tmp_path, f"/{MODEL}/{method}", request_message, response)
    assert caught.value.code() is code


def test_status_tells_memory_queue_and_totals(tmp_path: Path) -> None:
    found = one(tmp_path, f"/{STATUS}/GetStatus", status_pb2.GetStatusRequest(), status_pb2.GetStatusResponse)
    assert (found.state, found.model, found.version) == (status_pb2.DAEMON_STATE_SERVING, "tiny", "0.1.0")
    assert found.memory.budget_bytes == 512 << 20
    assert [term.name for term in found.memory.ledger] == ["process base", "margin"]
    assert sum(term.bytes for term in found.memory.ledger) <= found.memory.budget_bytes
    assert found.storage.read_bytes_per_s == 41e6
    assert found.memory.rss_anon_bytes > 0


def test_status_tells_how_passes_are_shared(tmp_path: Path) -> None:
    figures = {
        "max_rows": 512,
        "row_cap": 48,
        "kv_bytes_cached": 4096,
        "cached_tokens_total": 900,
        "restored_tokens_total": 300,
        "n_sessions": 2,
        "drafted_tokens_total": 50,
        "accepted_tokens_total": 40,
        "n_readers": 4,
        "read_size": 1 << 20,
        "probe_rates": ((1, 1 << 18, 11e6), (4, 1 << 20, 40e6)),
    }
    request, response = status_pb2.GetStatusRequest(), status_pb2.GetStatusResponse
    config = Config(max_requests=3, max_requests_per_client=5, max_sessions=7)
    engine = FakeEngine(figures=figures)
    found = one(tmp_path, f"/{STATUS}/GetStatus", request, response, engine=engine, config=config)
    assert found.scheduling == status_pb2.Scheduling(
        max_rows_per_pass=512, rows_while_decoding=48, max_active=3, max_requests_per_client=5
    )
    assert found.prefix_cache == status_pb2.PrefixCache(
        is_on=True, cached_bytes=4096, cached_tokens=900, restored_tokens=300, sessions=2, max_sessions=7
    )
    assert found.speculation == status_pb2.Speculation(is_on=True, drafted_tokens=50, accepted_tokens=40)
    assert (found.storage.readers, found.storage.read_bytes) == (4, 1 << 20)
    assert [(each.readers, each.read_bytes, each.bytes_per_s) for each in found.storage.probed] == [
        (1, 1 << 18, 11e6),
        (4, 1 << 20, 40e6),
    ]
    assert found.memory.kv_cached_bytes == 4096


def test_status_counts_the_clients_that_have_requests(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.gate.clear()

    async def n_clients(channel: grpc.aio.Channel) -> int:
        request, response = status_pb2.GetStatusRequest(), status_pb2.GetStatusResponse
        return int((await unary(channel, f"/{STATUS}/GetStatus", request, response)).scheduling.clients)

    async def body(server: Running, channel: grpc.aio.Channel) -> list[int]:
        found = [await n_clients(channel)]
        calls = [server.generate(channel, generation_pb2.GenerateRequest(prompt="x")) for _ in range(2)]
        for call in calls:
            await call.read()
        found.append(await n_clients(channel))
        engine.gate.set()
        for call in calls:
            await rest(call)
        return [*found, await n_clients(channel)]

    assert run(tmp_path, body, engine) == [0, 1, 0]


def test_settings_that_are_off_are_told_as_off(tmp_path: Path) -> None:
    config = Config(prefix_cache=False, speculation=False, draft_model=Path("draft.gguf"))
    request = model_pb2.GetModelRequest()
    found = one(tmp_path, f"/{MODEL}/GetModel", request, model_pb2.GetModelResponse, config=config).model
    capabilities = found.capabilities
    assert not any((capabilities.has_prefix_cache, capabilities.has_speculation, capabilities.has_draft_model))
    assert found.limits.max_sessions == 0


def test_a_draft_model_and_the_places_of_a_client_are_told(tmp_path: Path) -> None:
    config = Config(draft_model=Path("draft.gguf"), max_requests_per_client=5, max_sessions=7)
    request = model_pb2.GetModelRequest()
    found = one(tmp_path, f"/{MODEL}/GetModel", request, model_pb2.GetModelResponse, config=config).model
    capabilities = found.capabilities
    assert all((capabilities.has_prefix_cache, capabilities.has_speculation, capabilities.has_draft_model))
    assert (found.limits.max_requests_per_client, found.limits.max_sessions) == (5, 7)


def test_status_is_answered_while_the_model_loads(tmp_path: Path) -> None:
    async def body(server: Running, channel: grpc.aio.Channel) -> Any:
        server.state.served, server.state.ledger, server.state.state = None, None, DaemonState.STARTING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel, f"/{MODEL}/GetModel", model_pb2.GetModelRequest(), model_pb2.GetModelResponse)
        request = status_pb2.GetStatusRequest()
        return caught.value.code(), await unary(channel, f"/{STATUS}/GetStatus", request, status_pb2.GetStatusResponse)

    code, found = run(tmp_path, body)
    assert code is grpc.StatusCode.UNAVAILABLE
    assert found.state == status_pb2.DAEMON_STATE_STARTING


@pytest.mark.parametrize("name", ["", GENERATION, MODEL, STATUS])
def test_health_follows_the_daemon_for_every_service(tmp_path: Path, name: str) -> None:
    async def body(server: Running, channel: grpc.aio.Channel) -> list[int]:
        found = []
        for is_serving in (False, True, False):
            await server.service.health.set_serving(is_serving=is_serving)
            request = health_pb2.HealthCheckRequest(service=name)
            answer = await unary(channel, "/grpc.health.v1.Health/Check", request, health_pb2.HealthCheckResponse)
            found.append(answer.status)
        return found

    statuses = health_pb2.HealthCheckResponse
    assert run(tmp_path, body) == [statuses.NOT_SERVING, statuses.SERVING, statuses.NOT_SERVING]


def test_health_is_answered_while_requests_wait(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.gate.clear()

    async def body(server: Running, channel: grpc.aio.Channel) -> int:
        calls = [server.generate(channel, generation_pb2.GenerateRequest(prompt="x")) for _ in range(40)]
        for call in calls:
            await call.read()
        request = health_pb2.HealthCheckRequest()
        answer = await unary(channel, "/grpc.health.v1.Health/Check", request, health_pb2.HealthCheckResponse)
        for call in calls:
            call.cancel()
        return int(answer.status)

    assert run(tmp_path, body, engine) == health_pb2.HealthCheckResponse.NOT_SERVING


def test_reflection_lists_every_service(tmp_path: Path) -> None:
    async def body(_server: Running, channel: grpc.aio.Channel) -> set[str]:
        method: Any = channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            reflection_pb2.ServerReflectionRequest.SerializeToString,
            reflection_pb2.ServerReflectionResponse.FromString,
        )
        call = method(iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=WAIT_S)
        answer = await call.read()
        return {each.name for each in answer.list_services_response.service}

    assert {GENERATION, MODEL, STATUS, "grpc.health.v1.Health"} <= run(tmp_path, body)


def test_pings_every_ten_seconds_are_allowed_by_the_options() -> None:
    options = dict(service._options(1))
    assert options["grpc.http2.min_recv_ping_interval_without_data_ms"] < 10_000
    assert options["grpc.keepalive_permit_without_calls"] == 1
    assert options["grpc.max_receive_message_length"] > 5_000_000
