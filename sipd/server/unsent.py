"""Bounds the memory of long answers that clients have not taken: the ids of a text of 1 MB may be 2 MB.

Owned by the event loop's thread. Invariant: above LONG_BYTES each, no more than MOST_BYTES wait, or one answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from sipd.errors import ClientLimit, Overloaded
from sipd.server.client_identity import ClientIdentity

LONG_BYTES = 16 * 1024  # 256 shorter ones are 4 MiB
MOST_BYTES = 8 * 1024**2
_RETRY_AFTER_S = 1.0


class Unsent:
    """Counts the bytes of long answers between the method that made them and the client that takes them."""

    def __init__(self) -> None:
        self._n_bytes = 0
        self._of_client: Counter[str] = Counter()

    @contextmanager
    def hold(self, client: ClientIdentity, n_bytes: int) -> Iterator[None]:
        """Counts an answer while it is under way; raises Overloaded for too much, ClientLimit for that of a client."""
        if n_bytes <= LONG_BYTES:
            yield
            return
        self._check(client, n_bytes)
        self._n_bytes += n_bytes
        self._of_client[client.name] += n_bytes
        try:
            yield
        finally:
            self._n_bytes -= n_bytes
            self._of_client[client.name] -= n_bytes
            if not self._of_client[client.name]:
                del self._of_client[client.name]

    def _check(self, client: ClientIdentity, n_bytes: int) -> None:
        if self._n_bytes and self._n_bytes + n_bytes > MOST_BYTES:
            raise Overloaded(
                f"{self._n_bytes} bytes of answers are not taken yet, {n_bytes} more would be above {MOST_BYTES}",
                _RETRY_AFTER_S,
            )
        waiting = self._of_client[client.name]
        if waiting and waiting + n_bytes > MOST_BYTES // 2 and not client.is_shared:
            raise ClientLimit(
                f"{client.name} has not taken {waiting} bytes of answers yet, {n_bytes} more would be above "
                f"{MOST_BYTES // 2}",
                _RETRY_AFTER_S,
            )
