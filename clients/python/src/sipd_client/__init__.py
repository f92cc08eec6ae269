"""Client of the sipd daemon; needs grpcio and protobuf alone, and nothing of the daemon itself."""

from sipd_client.aio import AsyncClient
from sipd_client.client import Client
from sipd_client.connection import DEFAULT_TARGET, Tls
from sipd_client.errors import FieldViolation, IdleTimeout, SipdClientError
from sipd_client.events import Event, event_to_dict, to_dict
from sipd_client.requests import GenerateOptions
from sipd_client.v1.generation_pb2 import Accepted, ChatMessage, Finished, FinishReason, Progress, Token
from sipd_client.v1.model_pb2 import Model
from sipd_client.v1.status_pb2 import GetStatusResponse

__all__ = [
    "DEFAULT_TARGET",
    "Accepted",
    "AsyncClient",
    "ChatMessage",
    "Client",
    "Event",
    "FieldViolation",
    "FinishReason",
    "Finished",
    "GenerateOptions",
    "GetStatusResponse",
    "IdleTimeout",
    "Model",
    "Progress",
    "SipdClientError",
    "Tls",
    "Token",
    "event_to_dict",
    "to_dict",
]
