"""What all services share: whether the daemon starts, serves, drains or failed, and the model once it is there.

Owned by the event loop's thread.
"""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass, field

from sipd.config import Config
from sipd.errors import Draining, EngineFault, MemoryLimitLowered, NotFound, Starting
from sipd.memory import Ledger
from sipd.server.client_places import ClientPlaces
from sipd.server.prompt import PromptReader
from sipd.server.served_model import ServedModel

_ENVELOPE_BYTES = 256 * 1024  # options and framing: 1,024 biases, 16 stop strings, 1,024 chat messages


class DaemonState(enum.Enum):
    """The states of GetStatus; values are those of the proto's enum."""

    STARTING = 1
    SERVING = 2
    DRAINING = 3
    FAILED = 4


@dataclass(slots=True)
class ServiceState:
    """Set by the daemon, read by the services."""

    config: Config
    state: DaemonState = DaemonState.STARTING
    served: ServedModel | None = None
    ledger: Ledger | None = None
    last_error: str = ""
    places: ClientPlaces = field(default_factory=ClientPlaces)
    started_at: float = field(default_factory=time.monotonic)
    _prompts: PromptReader | None = None

    def max_request_bytes(self) -> int:
        """Returns the largest encoded request that is parsed at all."""
        max_prompt_bytes = self.config.max_prompt_bytes if self.served is None else self.served.max_prompt_bytes
        return max_prompt_bytes + _ENVELOPE_BYTES

    def prompt_reader(self) -> PromptReader:
        """Returns the one reader that all services share; raises as `require_served`."""
        if self._prompts is None:
            self._prompts = PromptReader(self.require_served())
        return self._prompts

    def require_memory(self) -> None:
        """Raises MemoryLimitLowered while more is promised than the limit of now holds."""
        shortfall = None if self.ledger is None else self.ledger.shortfall()
        if shortfall is not None and shortfall.n_bytes:
            raise MemoryLimitLowered(shortfall.limit_bytes, shortfall.needed_bytes)

    def require_served(self, model_name: str | None = None) -> ServedModel:
        """Returns the model; raises Starting, Draining, EngineFault, or NotFound for a name that is not served."""
        if self.state is DaemonState.DRAINING:
            raise Draining("the daemon is stopping and takes no new requests")
        if self.state is DaemonState.FAILED:
            raise EngineFault(f"the engine has failed: {self.last_error or 'no cause known'}")
        if self.served is None:
            raise Starting("the daemon is starting: its model is not checked yet")
        if model_name is not None and model_name != self.served.name:
            raise NotFound(f"model {model_name!r} is not served, wanted {self.served.name!r}")
        return self.served
