"""Makes sure at the start that file descriptors cannot run out while the daemon serves.

Invariant: as many connections as an address may have, on every address, leave enough for the daemon's own files.
"""

from __future__ import annotations

import resource
from contextlib import suppress

from sipd.errors import ConfigError

CONNECTIONS_OF_AN_ADDRESS = 64  # of each, so that a flood from the network leaves the Unix socket free
OWN_DESCRIPTORS = 64  # model, snapshots, journal, gRPC's own: a daemon with one model holds about 25


def require_descriptors(n_addresses: int) -> None:
    """Raises the soft limit to the hard one; raises ConfigError when that is not enough for `n_addresses`."""
    needed = n_addresses * CONNECTIONS_OF_AN_ADDRESS + OWN_DESCRIPTORS
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # a sandbox may forbid it: what is there may be enough
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < needed:
        raise ConfigError(
            "listen",
            f"{n_addresses} address(es) with {CONNECTIONS_OF_AN_ADDRESS} connections each take up to {needed} open "
            f"files, the limit is {limit} (LimitNOFILE=, ulimit -Hn); wanted at least {needed}",
        )
