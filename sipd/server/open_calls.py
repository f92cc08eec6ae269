"""The places of open calls, and each client's part of them.

Owned by the event loop's thread. Invariant: one client has at most its share, whatever it does with its calls, and the
programs of this machine that cannot be told apart leave a quarter to others; at most MAX_CALLS + MAX_UNREAD are held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sipd.errors import ClientLimit, Overloaded
from sipd.server.client_identity import ClientIdentity

MAX_CALLS = 256  # 22 KiB each and a header of up to 8 KiB: 8 MB, where 64 connections could open 4,096
MAX_UNREAD = 128  # beside these: a call whose client takes nothing lives on inside gRPC until its connection ends
_RETRY_AFTER_S = 1.0


@dataclass(slots=True)
class OpenCall:
    """One call that is open."""

    client: ClientIdentity
    is_unread: bool = False


class OpenCalls:
    """Counts the open calls of one kind."""

    def __init__(self, client_share: int = 0) -> None:
        """One client may have a quarter of the places, or `client_share` where that is more."""
        self._client_share = client_share
        self._n_open = 0
        self._n_unread = 0
        self._of_client: Counter[str] = Counter()  # unread ones included
        self._of_machine: Counter[str] = Counter()  # by what stands behind several clients: "local"

    @contextmanager
    def hold(self, client: ClientIdentity) -> Iterator[OpenCall]:
        """Holds a place while the call is open; raises Overloaded, or ClientLimit for one too many of a client."""
        self._check(client)
        call = OpenCall(client)
        self._n_open += 1
        self._of_client[client.name] += 1
        self._of_machine[client.session_owner] += 1
        try:
            yield call
        finally:
            if call.is_unread:
                self._n_unread -= 1
            else:
                self._leave(call)
            _count_down(self._of_client, client.name)

    def set_unread(self, call: OpenCall) -> None:
        """Lets others have the place of a call that nobody reads, as long as there are not too many of these."""
        if not call.is_unread and self._n_unread < MAX_UNREAD:
            call.is_unread = True
            self._n_unread += 1
            self._leave(call)

    def _leave(self, call: OpenCall) -> None:
        self._n_open -= 1
        _count_down(self._of_machine, call.client.session_owner)

    def _check(self, client: ClientIdentity) -> None:
        if self._n_open >= MAX_CALLS:
            raise Overloaded(f"{self._n_open} calls are open already, wanted at most {MAX_CALLS}", _RETRY_AFTER_S)
        share, n_calls = max(MAX_CALLS // 4, self._client_share), self._of_client[client.name]
        if n_calls >= share and not client.is_shared:
            raise ClientLimit(f"{client.name} has {n_calls} calls open, one client may have {share}", _RETRY_AFTER_S)
        most, n_calls = MAX_CALLS - MAX_CALLS // 4, self._of_machine[client.session_owner]
        if n_calls >= most:
            raise Overloaded(
                f"{client.session_owner} programs have {n_calls} calls open, wanted at most {most}", _RETRY_AFTER_S
            )


def _count_down(counter: Counter[str], name: str) -> None:
    counter[name] -= 1
    if not counter[name]:
        del counter[name]
