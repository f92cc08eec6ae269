from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetModelRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "architecture", "quants", "n_layers", "context_tokens", "trained_context_tokens", "vocab_size", "end_token_ids", "files", "limits", "capabilities")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    QUANTS_FIELD_NUMBER: _ClassVar[int]
    N_LAYERS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRAINED_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    END_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    name: str
    architecture: str
    quants: _containers.RepeatedCompositeFieldContainer[QuantShare]
    n_layers: int
    context_tokens: int
    trained_context_tokens: int
    vocab_size: int
    end_token_ids: _containers.RepeatedScalarFieldContainer[int]
    files: _containers.RepeatedCompositeFieldContainer[ModelFile]
    limits: Limits
    capabilities: Capabilities
    def __init__(self, name: _Optional[str] = ..., architecture: _Optional[str] = ..., quants: _Optional[_Iterable[_Union[QuantShare, _Mapping]]] = ..., n_layers: _Optional[int] = ..., context_tokens: _Optional[int] = ..., trained_context_tokens: _Optional[int] = ..., vocab_size: _Optional[int] = ..., end_token_ids: _Optional[_Iterable[int]] = ..., files: _Optional[_Iterable[_Union[ModelFile, _Mapping]]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., capabilities: _Optional[_Union[Capabilities, _Mapping]] = ...) -> None: ...

class QuantShare(_message.Message):
    __slots__ = ("type", "n_tensors", "bytes")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    N_TENSORS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    type: str
    n_tensors: int
    bytes: int
    def __init__(self, type: _Optional[str] = ..., n_tensors: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class ModelFile(_message.Message):
    __slots__ = ("name", "bytes", "header_sha256", "sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    HEADER_SHA256_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    bytes: int
    header_sha256: str
    sha256: str
    def __init__(self, name: _Optional[str] = ..., bytes: _Optional[int] = ..., header_sha256: _Optional[str] = ..., sha256: _Optional[str] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_prompt_bytes", "max_request_bytes", "max_active", "max_queued", "max_rows_per_pass", "max_stop_strings", "max_stop_string_bytes", "max_logprobs", "max_logit_biases", "default_max_tokens", "max_requests_per_client", "max_sessions")
    MAX_PROMPT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_ACTIVE_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUED_FIELD_NUMBER: _ClassVar[int]
    MAX_ROWS_PER_PASS_FIELD_NUMBER: _ClassVar[int]
    MAX_STOP_STRINGS_FIELD_NUMBER: _ClassVar[int]
    MAX_STOP_STRING_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MAX_LOGIT_BIASES_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUESTS_PER_CLIENT_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    max_prompt_bytes: int
    max_request_bytes: int
    max_active: int
    max_queued: int
    max_rows_per_pass: int
    max_stop_strings: int
    max_stop_string_bytes: int
    max_logprobs: int
    max_logit_biases: int
    default_max_tokens: int
    max_requests_per_client: int
    max_sessions: int
    def __init__(self, max_prompt_bytes: _Optional[int] = ..., max_request_bytes: _Optional[int] = ..., max_active: _Optional[int] = ..., max_queued: _Optional[int] = ..., max_rows_per_pass: _Optional[int] = ..., max_stop_strings: _Optional[int] = ..., max_stop_string_bytes: _Optional[int] = ..., max_logprobs: _Optional[int] = ..., max_logit_biases: _Optional[int] = ..., default_max_tokens: _Optional[int] = ..., max_requests_per_client: _Optional[int] = ..., max_sessions: _Optional[int] = ...) -> None: ...

class Capabilities(_message.Message):
    __slots__ = ("has_chat_template", "accepts_text", "arithmetic_contract", "isa", "has_prefix_cache", "has_speculation", "has_draft_model")
    HAS_CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    ACCEPTS_TEXT_FIELD_NUMBER: _ClassVar[int]
    ARITHMETIC_CONTRACT_FIELD_NUMBER: _ClassVar[int]
    ISA_FIELD_NUMBER: _ClassVar[int]
    HAS_PREFIX_CACHE_FIELD_NUMBER: _ClassVar[int]
    HAS_SPECULATION_FIELD_NUMBER: _ClassVar[int]
    HAS_DRAFT_MODEL_FIELD_NUMBER: _ClassVar[int]
    has_chat_template: bool
    accepts_text: bool
    arithmetic_contract: int
    isa: str
    has_prefix_cache: bool
    has_speculation: bool
    has_draft_model: bool
    def __init__(self, has_chat_template: bool = ..., accepts_text: bool = ..., arithmetic_contract: _Optional[int] = ..., isa: _Optional[str] = ..., has_prefix_cache: bool = ..., has_speculation: bool = ..., has_draft_model: bool = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("text", "model", "parse_special_tokens", "add_special_tokens")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PARSE_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ADD_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    text: str
    model: str
    parse_special_tokens: bool
    add_special_tokens: bool
    def __init__(self, text: _Optional[str] = ..., model: _Optional[str] = ..., parse_special_tokens: bool = ..., add_special_tokens: bool = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DetokenizeRequest(_message.Message):
    __slots__ = ("ids", "model")
    IDS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    model: str
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., model: _Optional[str] = ...) -> None: ...

class DetokenizeResponse(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...
