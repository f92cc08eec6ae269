"""What users of the client may rely on."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest

import sipd_client
from sipd_client import AsyncClient, Client

NAMES = {
    *("Client", "AsyncClient", "Tls", "DEFAULT_TARGET", "GenerateOptions"),
    *("Accepted", "Progress", "Token", "Finished", "FinishReason", "Event", "ChatMessage"),
    *("Model", "GetStatusResponse", "SipdClientError", "IdleTimeout", "FieldViolation"),
    *("event_to_dict", "to_dict"),
}


def public(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")}


def test_the_exported_names_are_these() -> None:
    assert set(sipd_client.__all__) == NAMES
    assert all(hasattr(sipd_client, name) for name in NAMES)


def test_both_clients_have_the_same_calls() -> None:
    assert public(Client) == public(AsyncClient)


@pytest.mark.parametrize("call", ["generate", "chat"])
def test_both_clients_take_the_same_arguments(call: str) -> None:
    def names(function: Callable[..., object]) -> list[str]:
        return list(inspect.signature(function).parameters)

    assert names(getattr(Client, call)) == names(getattr(AsyncClient, call))
