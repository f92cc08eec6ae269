from __future__ import annotations

import json
from pathlib import Path

import pytest

from sipd.errors import GgufError, SafetensorsError, TensorMismatch, UnsupportedModel
from sipd.inspect import run_inspect, summary
from sipd.weights.tensor_table import QuantType
from tests.builders import build_gguf, build_safetensors


def inspect(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert run_inspect(path, as_json=True) == 0
    report: dict[str, object] = json.loads(capsys.readouterr().out)
    return report


def test_every_tensor_is_listed_with_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = build_gguf(tmp_path / "m.gguf", quant=QuantType.Q8_0)
    tensors = inspect(path, capsys)["tensors"]
    assert isinstance(tensors, list)
    assert len(tensors) == 2 * 9 + 3
    first = tensors[0]
    assert (first["name"], first["shape"], first["type"]) == ("token_embd.weight", [320, 64], "Q8_0")
    assert first["bytes"] == 320 * 2 * 34
    offsets = [tensor["offset"] for tensor in tensors]
    assert offsets == sorted(offsets)
    assert tensors[-1]["offset"] + tensors[-1]["bytes"] <= path.stat().st_size


def test_totals_by_type_add_up_to_the_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = build_gguf(tmp_path / "m.gguf", quant=QuantType.Q4_0, quant_by_role={"output": QuantType.Q8_0})
    report = inspect(path, capsys)
    totals, tensors = report["totals"], report["tensors"]
    assert isinstance(totals, list)
    assert isinstance(tensors, list)
    assert {total["type"]: total["tensors"] for total in totals} == {"Q4_0": 15, "Q8_0": 1, "F32": 5}
    assert sum(total["bytes"] for total in totals) == report["weight_bytes"] == sum(t["bytes"] for t in tensors)


def test_long_arrays_are_cut_and_their_length_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = build_gguf(tmp_path / "m.gguf", with_vocab="gpt2")
    metadata = inspect(path, capsys)["metadata"]
    assert isinstance(metadata, dict)
    assert metadata["tokenizer.ggml.tokens"]["length"] == 320
    assert metadata["tokenizer.ggml.tokens"]["first"][:3] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert metadata["llama.block_count"] == 2


def test_hyperparameters_are_those_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = inspect(build_gguf(tmp_path / "m.gguf"), capsys)["hyperparameters"]
    assert isinstance(found, dict)
    assert (found["n_layers"], found["d_model"], found["n_kv_heads"], found["head_dim"]) == (2, 64, 2, 16)


def test_a_checkpoint_directory_is_printed_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = inspect(build_safetensors(tmp_path / "hf", n_shards=2), capsys)
    files, metadata = report["files"], report["metadata"]
    assert isinstance(files, list)
    assert isinstance(metadata, dict)
    assert report["format"] == "safetensors"
    assert len(files) == 2
    assert metadata["model_type"] == "llama"


def test_the_text_names_each_tensor_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_inspect(build_gguf(tmp_path / "m.gguf"), as_json=False)
    out = capsys.readouterr().out
    assert out.count("blk.1.ffn_down.weight") == 1
    assert "64x96" in out
    assert "general.architecture" in out


def test_an_unknown_architecture_is_shown_and_then_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = build_gguf(tmp_path / "m.gguf", metadata={"general.architecture": "mamba"})
    with pytest.raises(UnsupportedModel, match="mamba"):
        run_inspect(path, as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert report["hyperparameters"] is None
    assert "mamba" in report["refusal"]
    assert len(report["tensors"]) == 21


def test_a_left_over_tensor_is_shown_and_then_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = build_gguf(tmp_path / "m.gguf", extra={"blk.0.attn_q_norm.weight": (16,)})
    with pytest.raises(TensorMismatch, match=r"blk\.0\.attn_q_norm\.weight"):
        run_inspect(path, as_json=False)
    assert "blk.0.attn_q_norm.weight" in capsys.readouterr().out


def test_a_malformed_gguf_file_is_refused_with_nothing_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = build_gguf(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:-4096])
    with pytest.raises(GgufError):
        run_inspect(path, as_json=False)
    assert capsys.readouterr().out == ""


def test_a_malformed_checkpoint_is_refused(tmp_path: Path) -> None:
    directory = build_safetensors(tmp_path / "hf")
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(SafetensorsError):
        run_inspect(directory, as_json=False)


def test_a_long_text_is_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = build_gguf(tmp_path / "m.gguf", metadata={"general.description": "line\n" * 100})
    run_inspect(path, as_json=False)
    assert "(500 characters)" in capsys.readouterr().out
    assert summary("short") == "short"
    assert summary("x" * 97) == {"length": 97, "begins": "x" * 96}
