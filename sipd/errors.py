"""The one exception tree; each class knows its gRPC status, its stable reason string and its exit code.

SipdError                   INTERNAL             a fault of sipd that has no class of its own
├── InvalidRequest          INVALID_ARGUMENT     a field of a request is wrong (field named)
│   └── PromptTooLong       INVALID_ARGUMENT     prompt and context, both numbers given
├── NotFound                NOT_FOUND            a model or a name that the daemon does not serve
├── Unauthenticated         UNAUTHENTICATED      token missing or wrong
├── Overloaded              RESOURCE_EXHAUSTED   queue full; carries retry_after_s
│   └── ClientLimit         RESOURCE_EXHAUSTED   too many requests of one client; carries retry_after_s
├── OverBudget              RESOURCE_EXHAUSTED   the request could never fit the budget; largest fit named
├── MemoryLimitLowered      RESOURCE_EXHAUSTED   the memory limit was lowered below what is granted; both named
├── Draining                UNAVAILABLE          the daemon is stopping
├── Starting                UNAVAILABLE          the model is still being checked
├── StorageFault            UNAVAILABLE          reads fail (EIO …); file and offset named
├── DataLoss                DATA_LOSS            the model file shrank or changed under the daemon
├── EngineFault             INTERNAL             a pass failed
├── ModelError              exit 78              the model cannot be loaded (file, tensor named)
│   ├── GgufError / SafetensorsError / UnsupportedModel / TensorMismatch / TokenizerError
├── ConfigError             exit 78              a setting is wrong (setting named)
├── PullError               exit 1               a model cannot be downloaded or is not the one wanted
└── BudgetError             exit 78              the budget cannot hold one request (largest term named)
"""

from __future__ import annotations

from typing import ClassVar

from sipd.foreign_text import sendable

EX_SOFTWARE = 70
EX_CONFIG = 78


class SipdError(Exception):
    """Root of every fault that sipd reports; `str(error)` names the thing, what was found and what was wanted."""

    reason: ClassVar[str] = "INTERNAL_FAULT"
    grpc_status: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[int] = EX_SOFTWARE

    def __str__(self) -> str:
        """Returns the message, fit to be sent: Unicode, its middle left out where it is long."""
        return sendable(super().__str__())


class InvalidRequest(SipdError):
    """A request field holds a value that cannot be served."""

    reason = "INVALID_FIELD"
    grpc_status = "INVALID_ARGUMENT"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.description = sendable(message)


class PromptTooLong(InvalidRequest):
    """The prompt does not fit the context; sipd never truncates."""

    reason = "PROMPT_TOO_LONG"

    def __init__(self, prompt_tokens: int, context_tokens: int) -> None:
        super().__init__(
            "input",
            f"prompt has {prompt_tokens} tokens, the context holds {context_tokens} (at least one is kept free)",
        )
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens


class NotFound(SipdError):
    """A named model is not the one that is served."""

    reason = "MODEL_NOT_FOUND"
    grpc_status = "NOT_FOUND"


class Unauthenticated(SipdError):
    """The bearer token is missing or wrong."""

    reason = "TOKEN_REJECTED"
    grpc_status = "UNAUTHENTICATED"


class Overloaded(SipdError):
    """The queue is full; try again after `retry_after_s` seconds."""

    reason = "QUEUE_FULL"
    grpc_status = "RESOURCE_EXHAUSTED"

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ClientLimit(Overloaded):
    """The client has as many requests as one client may; others are still served."""

    reason = "CLIENT_LIMIT"


class OverBudget(SipdError):
    """The request's worst case could never fit the memory that the ledger can grant."""

    reason = "OVER_BUDGET"
    grpc_status = "RESOURCE_EXHAUSTED"


class MemoryLimitLowered(SipdError):
    """The memory limit was lowered under the running daemon, below what it has granted; it may be raised again."""

    reason = "MEMORY_LIMIT_LOWERED"
    grpc_status = "RESOURCE_EXHAUSTED"

    def __init__(self, limit_bytes: int, needed_bytes: int) -> None:
        super().__init__(
            f"the memory limit was lowered to {limit_bytes} bytes while {needed_bytes} are granted: new requests are "
            "refused until memory is given back or the limit is raised"
        )
        self.limit_bytes = limit_bytes
        self.needed_bytes = needed_bytes


class Draining(SipdError):
    """The daemon is stopping and takes no new work."""

    reason = "DRAINING"
    grpc_status = "UNAVAILABLE"


class Starting(SipdError):
    """The daemon is up, but its model is not checked yet."""

    reason = "STARTING"
    grpc_status = "UNAVAILABLE"


class Cancelled(SipdError):
    """The client cancelled or went away."""

    reason = "CANCELLED"
    grpc_status = "CANCELLED"


class DeadlineExceeded(SipdError):
    """The request's deadline passed while it was queued or running."""

    reason = "DEADLINE_EXCEEDED"
    grpc_status = "DEADLINE_EXCEEDED"


class StorageFault(SipdError):
    """Reading weights failed; `path`, fit to be sent, and `offset` say where."""

    reason = "STORAGE_FAULT"
    grpc_status = "UNAVAILABLE"

    def __init__(self, path: str, offset: int, message: str) -> None:
        super().__init__(f"{path}: at byte {offset}: {message}")
        self.path = sendable(path)
        self.offset = offset


class DataLoss(StorageFault):
    """The model file is shorter than its plan, or changed."""

    reason = "MODEL_FILE_CHANGED"
    grpc_status = "DATA_LOSS"


class EngineFault(SipdError):
    """A pass failed for a reason of ours."""

    reason = "ENGINE_FAULT"


class ModelError(SipdError):
    """The model cannot be loaded."""

    reason = "MODEL_REFUSED"
    exit_code = EX_CONFIG


class GgufError(ModelError):
    """A GGUF file is malformed; file and place named."""


class SafetensorsError(ModelError):
    """A safetensors file or its checkpoint is malformed; file and tensor named."""


class UnsupportedModel(ModelError):
    """The file is sound, but its architecture, type or option is not one that sipd runs."""


class TensorMismatch(ModelError):
    """A tensor is missing, left over, or of the wrong shape."""


class TokenizerError(ModelError):
    """The vocabulary or its description cannot be used."""


class ConfigError(SipdError):
    """A setting cannot be used."""

    reason = "CONFIG_REFUSED"
    exit_code = EX_CONFIG

    def __init__(self, setting: str, message: str) -> None:
        super().__init__(f"{setting}: {message}")
        self.setting = setting


class PullError(SipdError):
    """A model cannot be downloaded, stored, or is not the one that was wanted."""

    reason = "PULL_FAILED"
    exit_code = 1


class BudgetError(SipdError):
    """The budget cannot hold one request; `finding` names the terms, `advice` a setting that would fit."""

    reason = "BUDGET_TOO_SMALL"
    exit_code = EX_CONFIG

    def __init__(self, finding: str, advice: str = "") -> None:
        super().__init__(f"{finding}; {advice}" if advice else finding)
        self.finding = finding
        self.advice = advice
