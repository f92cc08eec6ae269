"""How many requests each client has in the daemon, waiting ones included.

Owned by the event loop's thread. Invariant: a place is given back exactly once, however the request ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from sipd.errors import ClientLimit
from sipd.server.client_identity import ClientIdentity

_RETRY_AFTER_S = 1.0


class ClientPlaces:
    """The count of live requests by client name."""

    def __init__(self) -> None:
        self._n_live: Counter[str] = Counter()

    @property
    def n_clients(self) -> int:
        """Clients that have a request now; those that share a name count as one."""
        return len(self._n_live)

    @contextmanager
    def hold(self, client: ClientIdentity, limit: int) -> Iterator[None]:
        """Holds one place of `client`; raises ClientLimit above `limit`, except where several clients share a name."""
        if self._n_live[client.name] >= limit and not client.is_shared:
            raise ClientLimit(
                f"{client.name} has {self._n_live[client.name]} requests in the daemon, one client may have {limit}",
                _RETRY_AFTER_S,
            )
        self._n_live[client.name] += 1
        try:
            yield
        finally:
            self._n_live[client.name] -= 1
            if not self._n_live[client.name]:
                del self._n_live[client.name]
