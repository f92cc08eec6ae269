"""The table of limits in SECURITY.md says what the code says."""

from __future__ import annotations

from pathlib import Path

from sipd.config import Config
from sipd.server import first_message, open_calls, receive_gate, service, service_state, unsent
from tests.unit.document import cells

TEXT = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")


def limit(what: str) -> str:
    """Returns the second cell of the row that begins with `what`."""
    (row,) = [line for line in TEXT.splitlines() if line.startswith(f"| {what}")]
    return cells(row)[1]


def test_the_sizes_are_those_of_the_server() -> None:
    n_mib, n_kib = service._RECEIVE_BYTES // 1024**2, service_state._ENVELOPE_BYTES // 1024
    assert limit("request message") == f"{n_mib} MiB received, then `max_prompt_bytes` and {n_kib} KiB"
    assert limit("message of `GetStatus`") == f"{(first_message.SMALL.max_bytes or 0) // 1024} KiB"
    n_mib = unsent.MOST_BYTES // 1024**2
    assert (
        limit(f"answers above {unsent.LONG_BYTES // 1024} KiB")
        == f"{n_mib} MiB together, {n_mib // 2} MiB of one client"
    )
    assert limit("header of a call") == f"{service._HEADER_BYTES // 1024} KiB"


def test_the_counts_are_those_of_the_server() -> None:
    options = dict(service._options(0))
    assert limit("calls of one connection") == f"{options['grpc.max_concurrent_streams']} at a time"
    assert limit("connections").startswith(f"{options['grpc.max_allowed_incoming_connections']} of each address")
    n_calls = open_calls.MAX_CALLS
    assert limit("open calls |") == f"{n_calls}, and {n_calls} of health and reflection"
    assert limit("open calls of one client") == f"{n_calls // 4}, or `max_requests_per_client` where that is more"
    assert limit("open calls of the machine's") == f"{n_calls // 4 * 3} together"
    assert limit("open calls that nobody reads").endswith(f"{open_calls.MAX_UNREAD} are kept beside the others")
    prompts, small = first_message.PROMPTS, first_message.SMALL
    slow_s = first_message.PATIENCE_S + first_message.LATE_S
    expected = f"{prompts.n_at_once}, and {prompts.max_late} slow ones, for {slow_s:g} s each"
    assert limit("prompts being received") == expected
    assert limit("small messages being received") == (
        f"{small.n_at_once}, and {small.max_late} slow one; the same for health and reflection"
    )
    assert limit("requests of one client") == f"`max_requests_per_client` ({Config().max_requests_per_client})"
    assert limit("requests that run") == (
        f"`max_requests` ({Config().max_requests}) and `max_queued` ({Config().max_queued})"
    )


def test_the_times_are_those_of_the_server() -> None:
    options = dict(service._options(0))
    assert limit("TLS handshake") == f"{options['grpc.server_handshake_timeout_ms'] // 1000} s"
    assert limit("connection without a call") == f"{options['grpc.max_connection_idle_ms'] // 60_000} minutes"
    vanished_ms = options["grpc.keepalive_time_ms"] + options["grpc.keepalive_timeout_ms"]
    assert limit("open calls that nobody reads").startswith(f"{receive_gate.UNREAD_S:g} s;")
    assert limit("client that vanished") == f"{vanished_ms // 1000} s"
    assert options["grpc.max_connection_age_ms"] == 3_600_000
    assert "old ones end within an hour" in " ".join(TEXT.split())
