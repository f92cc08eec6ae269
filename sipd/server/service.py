"""Builds the gRPC server: which services it has, its limits and its keepalive rules.

Invariant: every limit is explicit; health is answered whatever the other services do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import grpc
from grpc_reflection.v1alpha import reflection

from sipd.engine.request import Outcome
from sipd.server.auth import TokenFile, TokenInterceptor
from sipd.server.descriptors import CONNECTIONS_OF_AN_ADDRESS
from sipd.server.events import Events
from sipd.server.generation import GenerationService
from sipd.server.health import NAME as HEALTH_NAME
from sipd.server.health import Health
from sipd.server.journal import RequestJournal
from sipd.server.methods import service_handler, stream_method, unary_method
from sipd.server.model_service import ModelService
from sipd.server.receive_gate import ReceiveGate
from sipd.server.refusals import Refusals
from sipd.server.service_state import ServiceState
from sipd.server.status_service import StatusService
from sipd.v1 import generation_pb2, model_pb2, status_pb2

GENERATION = "sipd.v1.GenerationService"
MODEL = "sipd.v1.ModelService"
STATUS = "sipd.v1.StatusService"
# Above max_request_bytes at its default, so that a prompt of 5 MB gets our own INVALID_ARGUMENT.
_RECEIVE_BYTES = 6 * 1024**2
_HEADER_BYTES = 8 * 1024  # a bearer token and a proxy's fields take less
_MAX_CONNECTIONS = CONNECTIONS_OF_AN_ADDRESS  # 43 KiB each
_HANDSHAKE_MS = 10_000  # until TLS and HTTP/2 are settled; gRPC's default is 120 s
_IDLE_MS = 300_000  # of a connection without a call under way; clients connect again by themselves
_AGE_MS = 3_600_000  # new calls need a new handshake by then, so a client CA that was taken away counts


@dataclass(frozen=True, slots=True)
class GrpcService:
    """The server, not yet started, and its health."""

    server: grpc.aio.Server
    health: Health


async def build_service(
    state: ServiceState,
    journal: RequestJournal,
    tokens: TokenFile | None,
    on_outcome: Callable[[Outcome], None],
    events: Events,
) -> GrpcService:
    """Returns the server with all services added; ports are the caller's."""
    limit = state.max_request_bytes
    refusals = Refusals(events, asyncio.get_running_loop().call_later)
    gate = ReceiveGate(refusals, state.config.max_requests_per_client)
    interceptors = (gate,) if tokens is None else (TokenInterceptor(tokens, refusals), gate)
    server = grpc.aio.server(interceptors=interceptors, options=_options(limit()))
    generation = GenerationService(state, journal, refusals, on_outcome)
    model, status = ModelService(state), StatusService(state)
    methods = {
        GENERATION: {"Generate": stream_method(generation_pb2.GenerateRequest, generation.generate, limit)},
        MODEL: {
            "GetModel": unary_method(model_pb2.GetModelRequest, model.get_model, limit),
            "ListModels": unary_method(model_pb2.ListModelsRequest, model.list_models, limit),
            "Tokenize": unary_method(model_pb2.TokenizeRequest, model.tokenize, limit),
            "Detokenize": unary_method(model_pb2.DetokenizeRequest, model.detokenize, limit),
        },
        STATUS: {"GetStatus": unary_method(status_pb2.GetStatusRequest, status.get_status, limit)},
    }
    server.add_generic_rpc_handlers([service_handler(name, table) for name, table in methods.items()])
    health = Health(tuple(methods))
    await health.add_to(server)
    reflection.enable_server_reflection((*methods, HEALTH_NAME, reflection.SERVICE_NAME), server)
    return GrpcService(server, health)


def _options(max_request: int) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),  # a second daemon on the same port is an error, not a coin toss
        ("grpc.max_receive_message_length", max(_RECEIVE_BYTES, max_request)),
        ("grpc.max_metadata_size", _HEADER_BYTES),
        ("grpc.absolute_max_metadata_size", _HEADER_BYTES),  # between the two, gRPC would refuse by chance
        # Without probing, flow control holds a call that is not read at 64 KiB; requests are small, so nothing is lost.
        ("grpc.http2.bdp_probe", 0),
        # Above what runs and waits, so that the queue answers and not the transport, which resets a burst.
        # A stream costs 22 KiB and its header.
        ("grpc.max_concurrent_streams", 160),
        ("grpc.max_allowed_incoming_connections", _MAX_CONNECTIONS),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.max_connection_idle_ms", _IDLE_MS),
        ("grpc.max_connection_age_ms", _AGE_MS),  # its grace stays endless: calls under way live on
        # Clients may ping every 10 s through a silent prefill; 8 s leaves room for jitter. The default is 300 s.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 8_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # Our own pings notice a client that vanished without closing (Wi-Fi, power cut).
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
    ]
