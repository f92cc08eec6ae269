"""The GGUF reader against the `gguf` package; skipped where that is not installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from sipd.weights.gguf import read_gguf
from sipd.weights.gguf_array import GgufArray
from sipd.weights.tensor_table import QuantType
from tests.builders import build_gguf
from tests.paths import shared_path

gguf = pytest.importorskip("gguf")

VOCABULARIES = ("gpt-2", "llama-spm", "phi-3")  # the oracle takes many seconds for the larger ones


def assert_same(path: Path) -> None:
    """Compares every metadata value and every tensor extent with what the oracle finds."""
    oracle = gguf.GGUFReader(path)
    found = read_gguf(path)
    keys = [key for key in oracle.fields if not key.startswith("GGUF.")]
    assert list(found.metadata) == keys
    for key in keys:
        value = found.metadata[key]
        plain = list(value) if isinstance(value, GgufArray | tuple) else value
        assert plain == oracle.fields[key].contents(), key
    assert [
        (tensor.name, tensor.shape[::-1], tensor.quant_type.type_id, tensor.file_offset, tensor.n_bytes)
        for tensor in found.tensors.values()
    ] == [
        (tensor.name, tuple(tensor.shape.tolist()), tensor.tensor_type.value, tensor.data_offset, tensor.n_bytes)
        for tensor in oracle.tensors
    ]


@pytest.mark.parametrize("quant_type", list(QuantType))
def test_built_models_read_as_the_oracle_reads_them(tmp_path: Path, quant_type: QuantType) -> None:
    vocab = "spm" if quant_type.type_id % 2 else "gpt2"
    assert_same(build_gguf(tmp_path / "a.gguf", quant=quant_type, d_model=256, d_ff=256, with_vocab=vocab))


@pytest.mark.parametrize("quant_type", list(QuantType))
def test_built_weights_dequantise_to_the_wanted_spread(tmp_path: Path, quant_type: QuantType) -> None:
    path = build_gguf(tmp_path / "a.gguf", quant=quant_type, d_model=256, d_ff=512, n_layers=1)
    tensor = next(tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == "blk.0.ffn_up.weight")
    values = gguf.dequantize(tensor.data, tensor.tensor_type)
    assert values.shape == (512, 256)
    assert values.std() == pytest.approx(1 / 16, rel=0.05)
    assert abs(values.mean()) < 0.001


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_built_models_with_everything_read_as_the_oracle_reads_them(tmp_path: Path, arch: str) -> None:
    path = build_gguf(
        tmp_path / "a.gguf", arch=arch, rope_freqs=True, qkv_bias=True, tied=True, head_dim=32, alignment=64, seed=3
    )
    assert_same(path)


@pytest.mark.parametrize("name", VOCABULARIES)
def test_real_vocabularies_read_as_the_oracle_reads_them(name: str) -> None:
    assert_same(shared_path("models", "vocab", f"ggml-vocab-{name}.gguf"))


def test_the_stories_model_reads_as_the_oracle_reads_it() -> None:
    assert_same(shared_path("models", "stories260K-f32.gguf"))
