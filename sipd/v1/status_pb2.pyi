from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DaemonState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DAEMON_STATE_UNSPECIFIED: _ClassVar[DaemonState]
    DAEMON_STATE_STARTING: _ClassVar[DaemonState]
    DAEMON_STATE_SERVING: _ClassVar[DaemonState]
    DAEMON_STATE_DRAINING: _ClassVar[DaemonState]
    DAEMON_STATE_FAILED: _ClassVar[DaemonState]
DAEMON_STATE_UNSPECIFIED: DaemonState
DAEMON_STATE_STARTING: DaemonState
DAEMON_STATE_SERVING: DaemonState
DAEMON_STATE_DRAINING: DaemonState
DAEMON_STATE_FAILED: DaemonState

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("version", "state", "model", "uptime_s", "memory", "queue", "storage", "totals", "last_error")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    STORAGE_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    version: str
    state: DaemonState
    model: str
    uptime_s: float
    memory: Memory
    queue: Queue
    storage: Storage
    totals: Totals
    last_error: str
    def __init__(self, version: _Optional[str] = ..., state: _Optional[_Union[DaemonState, str]] = ..., model: _Optional[str] = ..., uptime_s: _Optional[float] = ..., memory: _Optional[_Union[Memory, _Mapping]] = ..., queue: _Optional[_Union[Queue, _Mapping]] = ..., storage: _Optional[_Union[Storage, _Mapping]] = ..., totals: _Optional[_Union[Totals, _Mapping]] = ..., last_error: _Optional[str] = ...) -> None: ...

class Memory(_message.Message):
    __slots__ = ("budget_bytes", "ledger", "rss_anon_bytes", "rss_file_bytes", "rss_peak_bytes", "kv_used_bytes", "kv_granted_bytes", "cgroup")
    BUDGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    RSS_ANON_BYTES_FIELD_NUMBER: _ClassVar[int]
    RSS_FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    RSS_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_GRANTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CGROUP_FIELD_NUMBER: _ClassVar[int]
    budget_bytes: int
    ledger: _containers.RepeatedCompositeFieldContainer[LedgerTerm]
    rss_anon_bytes: int
    rss_file_bytes: int
    rss_peak_bytes: int
    kv_used_bytes: int
    kv_granted_bytes: int
    cgroup: Cgroup
    def __init__(self, budget_bytes: _Optional[int] = ..., ledger: _Optional[_Iterable[_Union[LedgerTerm, _Mapping]]] = ..., rss_anon_bytes: _Optional[int] = ..., rss_file_bytes: _Optional[int] = ..., rss_peak_bytes: _Optional[int] = ..., kv_used_bytes: _Optional[int] = ..., kv_granted_bytes: _Optional[int] = ..., cgroup: _Optional[_Union[Cgroup, _Mapping]] = ...) -> None: ...

class LedgerTerm(_message.Message):
    __slots__ = ("name", "bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    bytes: int
    def __init__(self, name: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...

class Cgroup(_message.Message):
    __slots__ = ("version", "limit_bytes", "current_bytes", "anon_bytes", "file_bytes")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CURRENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    ANON_BYTES_FIELD_NUMBER: _ClassVar[int]
    FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    version: int
    limit_bytes: int
    current_bytes: int
    anon_bytes: int
    file_bytes: int
    def __init__(self, version: _Optional[int] = ..., limit_bytes: _Optional[int] = ..., current_bytes: _Optional[int] = ..., anon_bytes: _Optional[int] = ..., file_bytes: _Optional[int] = ...) -> None: ...

class Queue(_message.Message):
    __slots__ = ("active", "queued", "max_queued")
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUED_FIELD_NUMBER: _ClassVar[int]
    active: int
    queued: int
    max_queued: int
    def __init__(self, active: _Optional[int] = ..., queued: _Optional[int] = ..., max_queued: _Optional[int] = ...) -> None: ...

class Storage(_message.Message):
    __slots__ = ("read_bytes_per_s", "uses_direct_io", "pass_bytes", "pinned_bytes")
    READ_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    USES_DIRECT_IO_FIELD_NUMBER: _ClassVar[int]
    PASS_BYTES_FIELD_NUMBER: _ClassVar[int]
    PINNED_BYTES_FIELD_NUMBER: _ClassVar[int]
    read_bytes_per_s: float
    uses_direct_io: bool
    pass_bytes: int
    pinned_bytes: int
    def __init__(self, read_bytes_per_s: _Optional[float] = ..., uses_direct_io: bool = ..., pass_bytes: _Optional[int] = ..., pinned_bytes: _Optional[int] = ...) -> None: ...

class Totals(_message.Message):
    __slots__ = ("passes", "rows", "streamed_bytes", "head_bytes", "embedding_bytes", "device_bytes", "storage_wait_s", "compute_s", "storage_idle_s")
    PASSES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    STREAMED_BYTES_FIELD_NUMBER: _ClassVar[int]
    HEAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORAGE_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_S_FIELD_NUMBER: _ClassVar[int]
    STORAGE_IDLE_S_FIELD_NUMBER: _ClassVar[int]
    passes: int
    rows: int
    streamed_bytes: int
    head_bytes: int
    embedding_bytes: int
    device_bytes: int
    storage_wait_s: float
    compute_s: float
    storage_idle_s: float
    def __init__(self, passes: _Optional[int] = ..., rows: _Optional[int] = ..., streamed_bytes: _Optional[int] = ..., head_bytes: _Optional[int] = ..., embedding_bytes: _Optional[int] = ..., device_bytes: _Optional[int] = ..., storage_wait_s: _Optional[float] = ..., compute_s: _Optional[float] = ..., storage_idle_s: _Optional[float] = ...) -> None: ...
