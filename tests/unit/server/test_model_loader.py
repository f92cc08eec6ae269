from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from sipd.config import Config
from sipd.errors import ConfigError
from sipd.memory import Ledger
from sipd.server.model_loader import load_model, model_name, quant_shares, reserve_prompt_memory, weights_files
from sipd.server.model_text import read_model_text
from sipd.weights.tensor_table import Checkpoint, QuantType, Tensor
from tests.builders import build_gguf

MIB = 1024**2


def checkpoint(folder: Path) -> Checkpoint:
    """Two files: a header of 100 bytes and two tensors, a header of 50 bytes and one."""
    files = (folder / "a.gguf", folder / "b.gguf")
    files[0].write_bytes(b"h" * 100 + b"w" * 300)
    files[1].write_bytes(b"H" * 50 + b"w" * 40)
    tensors = {
        "late": Tensor("late", (50,), QuantType.F32, 0, 200, 200),
        "early": Tensor("early", (25,), QuantType.F32, 0, 100, 100),
        "other": Tensor("other", (2, 32), QuantType.Q4_1, 1, 50, 40),
    }
    return Checkpoint(files[0], "gguf", files, (400, 90), {}, tensors)


def test_each_file_is_known_by_the_digest_of_its_header(tmp_path: Path) -> None:
    found = weights_files(checkpoint(tmp_path))
    assert [(each.name, each.n_bytes) for each in found] == [("a.gguf", 400), ("b.gguf", 90)]
    assert found[0].header_sha256 == hashlib.sha256(b"h" * 100).hexdigest()
    assert found[1].header_sha256 == hashlib.sha256(b"H" * 50).hexdigest()


def test_types_are_listed_the_largest_share_first(tmp_path: Path) -> None:
    shares = quant_shares(checkpoint(tmp_path))
    assert [(each.type_name, each.n_tensors, each.n_bytes) for each in shares] == [("F32", 2, 300), ("Q4_1", 1, 40)]


def test_a_model_is_named_after_its_file_or_folder(tmp_path: Path) -> None:
    assert model_name(tmp_path / "SmolLM2-135M.Q4_1.gguf") == "SmolLM2-135M.Q4_1"
    assert model_name(tmp_path / "tiny-hf") == "tiny-hf"


def test_a_file_name_that_no_message_can_hold_is_refused_with_the_setting_that_helps(tmp_path: Path) -> None:
    path = build_gguf(tmp_path / "m\udcff.gguf")
    with pytest.raises(ConfigError, match=r"^model_name: found 'm\\udcff' .* which is not UTF-8; wanted --model-name"):
        load_model(Config(model=path, budget=256 * MIB))


def test_a_file_name_that_is_no_utf_8_is_told_with_escapes(tmp_path: Path) -> None:
    table = checkpoint(tmp_path)
    path = table.files[0].rename(tmp_path / "m\udcff.gguf")
    assert weights_files(replace(table, files=(path, table.files[1])))[0].name == r"m\udcff.gguf"


def test_a_checkpoint_without_a_tokenizer_has_no_text(tmp_path: Path) -> None:
    assert read_model_text(checkpoint(tmp_path)) is None


def test_memory_for_prompts_grows_with_the_budget_up_to_the_setting() -> None:
    limits = []
    for budget in (64, 256, 4096):
        ledger = Ledger(budget * MIB, 30 * MIB, 4 * MIB)
        limits.append(reserve_prompt_memory(ledger, 100_000))
        assert ledger.granted() == limits[-1] * 200
    assert limits == [max(8192, 30 * MIB // 16 // 200), 222 * MIB // 16 // 200, 100_000]
