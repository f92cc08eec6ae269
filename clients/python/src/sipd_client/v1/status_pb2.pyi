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
    __slots__ = ("version", "state", "model", "uptime_s", "memory", "queue", "storage", "totals", "last_error", "scheduling", "prefix_cache", "speculation")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    STORAGE_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    SCHEDULING_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    version: str
    state: DaemonState
    model: str
    uptime_s: float
    memory: Memory
    queue: Queue
    storage: Storage
    totals: Totals
    last_error: str
    scheduling: Scheduling
    prefix_cache: PrefixCache
    speculation: Speculation
    def __init__(self, version: _Optional[str] = ..., state: _Optional[_Union[DaemonState, str]] = ..., model: _Optional[str] = ..., uptime_s: _Optional[float] = ..., memory: _Optional[_Union[Memory, _Mapping]] = ..., queue: _Optional[_Union[Queue, _Mapping]] = ..., storage: _Optional[_Union[Storage, _Mapping]] = ..., totals: _Optional[_Union[Totals, _Mapping]] = ..., last_error: _Optional[str] = ..., scheduling: _Optional[_Union[Scheduling, _Mapping]] = ..., prefix_cache: _Optional[_Union[PrefixCache, _Mapping]] = ..., speculation: _Optional[_Union[Speculation, _Mapping]] = ...) -> None: ...

class Memory(_message.Message):
    __slots__ = ("budget_bytes", "ledger", "rss_anon_bytes", "rss_file_bytes", "rss_peak_bytes", "kv_used_bytes", "kv_granted_bytes", "cgroup", "kv_cached_bytes", "limit_changes", "memory_pressure", "io_pressure")
    BUDGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    RSS_ANON_BYTES_FIELD_NUMBER: _ClassVar[int]
    RSS_FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    RSS_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_GRANTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CGROUP_FIELD_NUMBER: _ClassVar[int]
    KV_CACHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_CHANGES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_PRESSURE_FIELD_NUMBER: _ClassVar[int]
    IO_PRESSURE_FIELD_NUMBER: _ClassVar[int]
    budget_bytes: int
    ledger: _containers.RepeatedCompositeFieldContainer[LedgerTerm]
    rss_anon_bytes: int
    rss_file_bytes: int
    rss_peak_bytes: int
    kv_used_bytes: int
    kv_granted_bytes: int
    cgroup: Cgroup
    kv_cached_bytes: int
    limit_changes: int
    memory_pressure: Pressure
    io_pressure: Pressure
    def __init__(self, budget_bytes: _Optional[int] = ..., ledger: _Optional[_Iterable[_Union[LedgerTerm, _Mapping]]] = ..., rss_anon_bytes: _Optional[int] = ..., rss_file_bytes: _Optional[int] = ..., rss_peak_bytes: _Optional[int] = ..., kv_used_bytes: _Optional[int] = ..., kv_granted_bytes: _Optional[int] = ..., cgroup: _Optional[_Union[Cgroup, _Mapping]] = ..., kv_cached_bytes: _Optional[int] = ..., limit_changes: _Optional[int] = ..., memory_pressure: _Optional[_Union[Pressure, _Mapping]] = ..., io_pressure: _Optional[_Union[Pressure, _Mapping]] = ...) -> None: ...

class LedgerTerm(_message.Message):
    __slots__ = ("name", "bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    bytes: int
    def __init__(self, name: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...

class Cgroup(_message.Message):
    __slots__ = ("version", "limit_bytes", "current_bytes", "anon_bytes", "file_bytes", "max_events", "high_events", "oom_events", "oom_kill_events")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CURRENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    ANON_BYTES_FIELD_NUMBER: _ClassVar[int]
    FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_EVENTS_FIELD_NUMBER: _ClassVar[int]
    HIGH_EVENTS_FIELD_NUMBER: _ClassVar[int]
    OOM_EVENTS_FIELD_NUMBER: _ClassVar[int]
    OOM_KILL_EVENTS_FIELD_NUMBER: _ClassVar[int]
    version: int
    limit_bytes: int
    current_bytes: int
    anon_bytes: int
    file_bytes: int
    max_events: int
    high_events: int
    oom_events: int
    oom_kill_events: int
    def __init__(self, version: _Optional[int] = ..., limit_bytes: _Optional[int] = ..., current_bytes: _Optional[int] = ..., anon_bytes: _Optional[int] = ..., file_bytes: _Optional[int] = ..., max_events: _Optional[int] = ..., high_events: _Optional[int] = ..., oom_events: _Optional[int] = ..., oom_kill_events: _Optional[int] = ...) -> None: ...

class Pressure(_message.Message):
    __slots__ = ("some_avg10", "some_avg60", "full_avg10", "full_avg60")
    SOME_AVG10_FIELD_NUMBER: _ClassVar[int]
    SOME_AVG60_FIELD_NUMBER: _ClassVar[int]
    FULL_AVG10_FIELD_NUMBER: _ClassVar[int]
    FULL_AVG60_FIELD_NUMBER: _ClassVar[int]
    some_avg10: float
    some_avg60: float
    full_avg10: float
    full_avg60: float
    def __init__(self, some_avg10: _Optional[float] = ..., some_avg60: _Optional[float] = ..., full_avg10: _Optional[float] = ..., full_avg60: _Optional[float] = ...) -> None: ...

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
    __slots__ = ("read_bytes_per_s", "uses_direct_io", "pass_bytes", "pinned_bytes", "readers", "read_bytes", "probed")
    READ_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    USES_DIRECT_IO_FIELD_NUMBER: _ClassVar[int]
    PASS_BYTES_FIELD_NUMBER: _ClassVar[int]
    PINNED_BYTES_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROBED_FIELD_NUMBER: _ClassVar[int]
    read_bytes_per_s: float
    uses_direct_io: bool
    pass_bytes: int
    pinned_bytes: int
    readers: int
    read_bytes: int
    probed: _containers.RepeatedCompositeFieldContainer[ProbedRate]
    def __init__(self, read_bytes_per_s: _Optional[float] = ..., uses_direct_io: bool = ..., pass_bytes: _Optional[int] = ..., pinned_bytes: _Optional[int] = ..., readers: _Optional[int] = ..., read_bytes: _Optional[int] = ..., probed: _Optional[_Iterable[_Union[ProbedRate, _Mapping]]] = ...) -> None: ...

class ProbedRate(_message.Message):
    __slots__ = ("readers", "read_bytes", "bytes_per_s")
    READERS_FIELD_NUMBER: _ClassVar[int]
    READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    readers: int
    read_bytes: int
    bytes_per_s: float
    def __init__(self, readers: _Optional[int] = ..., read_bytes: _Optional[int] = ..., bytes_per_s: _Optional[float] = ...) -> None: ...

class Scheduling(_message.Message):
    __slots__ = ("max_rows_per_pass", "rows_while_decoding", "max_active", "max_requests_per_client", "clients")
    MAX_ROWS_PER_PASS_FIELD_NUMBER: _ClassVar[int]
    ROWS_WHILE_DECODING_FIELD_NUMBER: _ClassVar[int]
    MAX_ACTIVE_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUESTS_PER_CLIENT_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    max_rows_per_pass: int
    rows_while_decoding: int
    max_active: int
    max_requests_per_client: int
    clients: int
    def __init__(self, max_rows_per_pass: _Optional[int] = ..., rows_while_decoding: _Optional[int] = ..., max_active: _Optional[int] = ..., max_requests_per_client: _Optional[int] = ..., clients: _Optional[int] = ...) -> None: ...

class PrefixCache(_message.Message):
    __slots__ = ("is_on", "cached_bytes", "cached_tokens", "restored_tokens", "sessions", "max_sessions")
    IS_ON_FIELD_NUMBER: _ClassVar[int]
    CACHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RESTORED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    is_on: bool
    cached_bytes: int
    cached_tokens: int
    restored_tokens: int
    sessions: int
    max_sessions: int
    def __init__(self, is_on: bool = ..., cached_bytes: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., restored_tokens: _Optional[int] = ..., sessions: _Optional[int] = ..., max_sessions: _Optional[int] = ...) -> None: ...

class Speculation(_message.Message):
    __slots__ = ("is_on", "drafted_tokens", "accepted_tokens", "has_draft_model")
    IS_ON_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HAS_DRAFT_MODEL_FIELD_NUMBER: _ClassVar[int]
    is_on: bool
    drafted_tokens: int
    accepted_tokens: int
    has_draft_model: bool
    def __init__(self, is_on: bool = ..., drafted_tokens: _Optional[int] = ..., accepted_tokens: _Optional[int] = ..., has_draft_model: bool = ...) -> None: ...

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
