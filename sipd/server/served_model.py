"""What the daemon serves: one model, its text edges and its engine, put together once at start."""

from __future__ import annotations

from dataclasses import dataclass

from sipd.server.contracts import EngineLike, TextLike


@dataclass(frozen=True, slots=True)
class WeightsFile:
    """A file with weights; `header_sha256` covers everything before the first weight."""

    name: str
    n_bytes: int
    header_sha256: str


@dataclass(frozen=True, slots=True)
class QuantShare:
    """The weights stored in one type."""

    type_name: str
    n_tensors: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Facts for GetModel beside the parts that requests need. `text` is None without tokenizer files."""

    name: str
    architecture: str
    n_layers: int
    trained_context_tokens: int
    quants: tuple[QuantShare, ...]
    files: tuple[WeightsFile, ...]
    engine: EngineLike
    text: TextLike | None
    max_prompt_bytes: int
