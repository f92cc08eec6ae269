"""Puts together what is served: checkpoint, text, ledger, engine; runs in a thread while the server says STARTING.

Invariant: the ledger is opened last before the engine, so that its base holds everything else that stays in memory.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from pathlib import Path

from sipd.cgroup import CONTROLLER_ADVICE, is_controller_missing
from sipd.config import Config
from sipd.engine.build import build_engine
from sipd.errors import BudgetError, ConfigError, ModelError, TokenizerError
from sipd.foreign_text import sendable
from sipd.memory import Ledger, open_ledger
from sipd.process_memory import return_free_memory
from sipd.server.model_text import read_model_text
from sipd.server.served_model import QuantShare, ServedModel, WeightsFile
from sipd.size import format_size, setting_size
from sipd.weights.checkpoint import open_checkpoint
from sipd.weights.model_file import open_model_file, read_exactly
from sipd.weights.tensor_table import Checkpoint

_LOG = logging.getLogger("sipd.load")
_CHUNK_BYTES = 256 * 1024
# Anonymous memory while a byte of text is tokenised, measured at its worst: random ASCII 184, CJK 113, one word 87.
_TOKENISING_BYTES = 200
_PROMPT_SHARE = 16  # of what is free: a token's keys and values cost far more than its text, so contexts still fit
_MIN_PROMPT_BYTES = 8 * 1024


def load_model(config: Config) -> tuple[ServedModel, Ledger]:
    """Returns the verified model and its ledger; blocks for seconds; raises ModelError, BudgetError, ConfigError."""
    if config.model is None:
        raise ConfigError("model", "not set, wanted a path")
    checkpoint = open_checkpoint(config.model)
    name = config.model_name or model_name(checkpoint.path)
    text = read_model_text(checkpoint)
    if text is None:
        _LOG.warning("%s came without tokenizer files: only token id prompts work", config.model)
    files = weights_files(checkpoint)
    quants = quant_shares(checkpoint)
    if is_controller_missing():
        _LOG.warning("%s", CONTROLLER_ADVICE)
    return_free_memory()
    ledger = open_ledger(config.budget)
    _LOG.info("memory: limit of %s set by %s", format_size(ledger.limit_bytes), ledger.source)
    try:
        max_prompt_bytes = reserve_prompt_memory(ledger, config.max_prompt_bytes)
        engine = build_engine(config, checkpoint, ledger)
    except BudgetError as error:
        raise _with_all_parts(error, config, ledger) from error
    if text is not None and text.vocab_size > engine.vocab_size:
        engine.stop()
        raise TokenizerError(
            f"{config.model}: the tokenizer has {text.vocab_size} tokens, the model only {engine.vocab_size}"
        )
    for term in ledger.table():
        _LOG.info("memory: %-16s %s", term.name, format_size(term.n_bytes))
    served = ServedModel(
        name=name,
        architecture=_text(checkpoint, "general.architecture", "model_type"),
        n_layers=_count(checkpoint, "block_count", "num_hidden_layers"),
        trained_context_tokens=_count(checkpoint, "context_length", "max_position_embeddings"),
        quants=quants,
        files=files,
        engine=engine,
        text=text,
        max_prompt_bytes=max_prompt_bytes,
    )
    return served, ledger


def _with_all_parts(error: BudgetError, config: Config, ledger: Ledger) -> BudgetError:
    """Returns the refusal with a budget that holds every part: the one that failed may not have been the last."""
    from sipd.engine.planned_model import open_planned_model  # noqa: PLC0415 - only a refusal needs it

    nearest = open_planned_model(config).nearest_budget(
        ledger.base_bytes, lambda book: reserve_prompt_memory(book, config.max_prompt_bytes)
    )
    return BudgetError(error.finding, f"wanted --budget {setting_size(nearest)} or more")


def reserve_prompt_memory(ledger: Ledger, max_prompt_bytes: int) -> int:
    """Returns the largest prompt in bytes whose tokenising the budget can bear, and has the ledger grant it."""
    affordable = max(_MIN_PROMPT_BYTES, ledger.remaining() // _PROMPT_SHARE // _TOKENISING_BYTES)
    n_bytes = min(max_prompt_bytes, affordable)
    ledger.grant("prompt text", n_bytes * _TOKENISING_BYTES)
    return n_bytes


def model_name(path: Path) -> str:
    """Returns the name under which a model at `path` is served: its file's or folder's name, without .gguf.

    Raises ConfigError for a name that no message can hold.
    """
    name = path.resolve().name.removesuffix(".gguf")
    if sendable(name) != name:
        raise ConfigError("model_name", f"found {name!r} by the model's path, which is not UTF-8; wanted --model-name")
    return name


def quant_shares(checkpoint: Checkpoint) -> tuple[QuantShare, ...]:
    """Returns the weights by type, the largest share first."""
    n_tensors: Counter[str] = Counter()
    n_bytes: Counter[str] = Counter()
    for tensor in checkpoint.tensors.values():
        n_tensors[tensor.quant_type.name] += 1
        n_bytes[tensor.quant_type.name] += tensor.n_bytes
    return tuple(QuantShare(name, n_tensors[name], size) for name, size in n_bytes.most_common())


def weights_files(checkpoint: Checkpoint) -> tuple[WeightsFile, ...]:
    """Returns each file with the digest of its header: everything before its first weight."""
    header_bytes = list(checkpoint.file_sizes)
    for tensor in checkpoint.tensors.values():
        header_bytes[tensor.file_index] = min(header_bytes[tensor.file_index], tensor.file_offset)
    return tuple(
        WeightsFile(sendable(path.name), size, _header_sha256(path, n_bytes))
        for path, size, n_bytes in zip(checkpoint.files, checkpoint.file_sizes, header_bytes, strict=True)
    )


def _header_sha256(path: Path, n_bytes: int) -> str:
    digest = hashlib.sha256()
    file, _ = open_model_file(path, ModelError)
    with file:
        for offset in range(0, n_bytes, _CHUNK_BYTES):
            digest.update(read_exactly(file, path, offset, min(_CHUNK_BYTES, n_bytes - offset), ModelError))
    return digest.hexdigest()


def _text(checkpoint: Checkpoint, gguf_key: str, config_key: str) -> str:
    key = gguf_key if checkpoint.file_format == "gguf" else config_key
    return str(checkpoint.metadata.get(key, ""))


def _count(checkpoint: Checkpoint, gguf_key: str, config_key: str) -> int:
    """Returns a count of the metadata; the engine has checked it, so anything odd here is reported as 0."""
    key = config_key
    if checkpoint.file_format == "gguf":
        key = f"{checkpoint.metadata.get('general.architecture')}.{gguf_key}"
    value = checkpoint.metadata.get(key)
    return value if isinstance(value, int) and 0 <= value < 2**32 else 0
