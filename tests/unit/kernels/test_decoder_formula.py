"""Passes against a plain decoder in double precision, written from the papers: no formula is shared with the twin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sipd.kernels.reference_quants import dequantize
from sipd.models import rope
from sipd.weights.checkpoint import open_checkpoint
from sipd.weights.tensor_table import Checkpoint, QuantType
from tests.builders import build_gguf, build_safetensors
from tests.unit.kernels.loaded_model import LoadedModel, Setting, tokens_of

F64 = NDArray[np.float64]
SHAPE: dict[str, Any] = {"d_model": 64, "n_heads": 4, "n_kv_heads": 2, "d_ff": 96, "vocab_size": 150}
N_HEADS, N_KV_HEADS, EPS = 4, 2, 1e-5
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def read_weights(path: Path) -> dict[str, F64]:
    """Every tensor, dequantised, by a short role name shared by both formats."""
    checkpoint: Checkpoint = open_checkpoint(path)
    raw = [file.read_bytes() for file in checkpoint.files]
    weights: dict[str, F64] = {}
    for tensor in checkpoint.tensors.values():
        data = raw[tensor.file_index][tensor.file_offset : tensor.file_offset + tensor.n_bytes]
        flat = dequantize(tensor.quant_type, np.frombuffer(data, np.uint8).reshape(1, -1))
        weights[tensor.name] = flat.reshape(tensor.shape).astype(np.float64)
    return weights


def normed(x: F64, weight: F64) -> F64:
    out: F64 = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPS) * weight
    return out


def rotated(v: F64, frequencies: F64, *, is_neox: bool) -> F64:
    """(positions, heads, dim) as complex numbers turned by position times frequency."""
    half = v.shape[2] // 2
    first, second = (v[:, :, :half], v[:, :, half:]) if is_neox else (v[:, :, 0::2], v[:, :, 1::2])
    angles = np.arange(v.shape[0])[:, None] * frequencies
    turned = (first + 1j * second) * np.exp(1j * angles)[:, None, :]
    parts = [turned.real, turned.imag]
    out: F64 = np.concatenate(parts, axis=2) if is_neox else np.stack(parts, axis=3).reshape(v.shape)
    return out


def decode(weights: dict[str, F64], tokens: list[int], frequencies: F64, *, is_neox: bool) -> F64:
    """Logits of every position; GGUF names."""
    x = weights["token_embd.weight"][tokens]
    n, n_layers = len(tokens), sum(name.endswith("attn_norm.weight") for name in weights)
    mask = np.triu(np.full((n, n), -np.inf), 1)
    for layer in range(n_layers):
        block = {name.split(".", 2)[2]: w for name, w in weights.items() if name.startswith(f"blk.{layer}.")}
        h = normed(x, block["attn_norm.weight"])
        q, k, v = (
            (h @ block[f"attn_{role}.weight"].T + block.get(f"attn_{role}.bias", 0.0)).reshape(n, heads, -1)
            for role, heads in (("q", N_HEADS), ("k", N_KV_HEADS), ("v", N_KV_HEADS))
        )
        q, k = rotated(q, frequencies, is_neox=is_neox), rotated(k, frequencies, is_neox=is_neox)
        k, v = (np.repeat(part, N_HEADS // N_KV_HEADS, axis=1) for part in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(q.shape[2]) + mask
        p = np.exp(scores - scores.max(axis=2, keepdims=True))
        mixed = np.einsum("hij,jhd->ihd", p / p.sum(axis=2, keepdims=True), v)
        x = x + mixed.reshape(n, -1) @ block["attn_output.weight"].T
        h = normed(x, block["ffn_norm.weight"])
        gate, up = h @ block["ffn_gate.weight"].T, h @ block["ffn_up.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ block["ffn_down.weight"].T
    head = weights.get("output.weight", weights["token_embd.weight"])
    out: F64 = normed(x, weights["output_norm.weight"]) @ head.T
    return out


def plain_frequencies(n_rot: int, theta: float = 10000.0) -> F64:
    return np.asarray(theta ** (-np.arange(0, n_rot, 2) / n_rot), np.float64)


@pytest.mark.parametrize("isa", ["auto", "numpy"])
@pytest.mark.parametrize("arch", ["llama", "qwen2"])
@pytest.mark.parametrize(
    ("quant_type", "tolerance"),
    # binary16 keys and values, and eight-bit activations where the weights are blocks
    [(t, 4e-3 if t.block_size == 1 else 0.08) for t in QuantType if t.block_size < 256],
)
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_logits_are_close_to_a_decoder_in_double_precision(
    tmp_path: Path, isa: str, arch: str, quant_type: QuantType, tolerance: float, *, tied: bool
) -> None:  # fmt: skip
    path = build_gguf(tmp_path / "m.gguf", arch=arch, quant=quant_type, tied=tied, **SHAPE)
    tokens = tokens_of(45, 150)
    wanted = decode(read_weights(path), tokens, plain_frequencies(16), is_neox=arch != "llama")
    with LoadedModel(path, Setting(isa=isa)) as model:
        found = model.prompt_logits(tokens, last=10)
    error = np.abs(found - wanted[-10:]).max() / wanted.std()
    assert error < tolerance


@pytest.mark.parametrize("isa", ["auto", "numpy"])
def test_rope_factors_of_a_file_are_honoured_near_and_far(tmp_path: Path, isa: str) -> None:
    path = build_gguf(tmp_path / "m.gguf", rope_freqs=True, **SHAPE)
    tokens = tokens_of(310, 150)
    weights = read_weights(path)
    frequencies = plain_frequencies(16) / weights["rope_freqs.weight"]
    wanted = decode(weights, tokens, frequencies, is_neox=False)
    without = decode(weights, tokens, plain_frequencies(16), is_neox=False)
    with LoadedModel(path, Setting(isa=isa)) as model:
        near, far = model.prompt_logits(tokens[:6])[0], model.prompt_logits(tokens)[0]
    for found, position in ((near, 5), (far, 309)):
        assert np.abs(found - wanted[position]).max() < 4e-3 * wanted.std()
        assert np.abs(found - without[position]).max() > 2e-2 * wanted.std()


@pytest.mark.parametrize("isa", ["auto", "numpy"])
@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_llama3_scaling_of_a_checkpoint_is_honoured_near_and_far(tmp_path: Path, isa: str, key: str) -> None:
    scaling = {key if name == "rope_type" else name: value for name, value in LLAMA3.items()}
    checkpoint = build_safetensors(tmp_path / "hf", config={"rope_scaling": scaling}, **SHAPE)
    # the same weights under GGUF names, in the order of a checkpoint: qwen2 files are not permuted
    weights = read_weights(build_gguf(tmp_path / "m.gguf", arch="qwen2", qkv_bias=False, **SHAPE))
    tokens = tokens_of(310, 150)
    frequencies = plain_frequencies(16)
    wavelengths = 2 * np.pi / frequencies
    smooth = np.clip((64 / wavelengths - 1.0) / (4.0 - 1.0), 0, 1)
    scaled = frequencies * smooth + frequencies / 8.0 * (1 - smooth)
    assert ((smooth > 0) & (smooth < 1)).any()  # a blended one is among them
    wanted = decode(weights, tokens, scaled, is_neox=True)
    without = decode(weights, tokens, frequencies, is_neox=True)
    with LoadedModel(checkpoint, Setting(isa=isa)) as model:
        near, far = model.prompt_logits(tokens[:6])[0], model.prompt_logits(tokens)[0]
    assert np.abs(near - wanted[5]).max() < 4e-3 * wanted.std()
    assert np.abs(far - wanted[309]).max() < 4e-3 * wanted.std()
    assert np.abs(far - without[309]).max() > 2e-2 * wanted.std()


def test_an_unknown_scaling_is_refused() -> None:
    with pytest.raises(Exception, match="yarn"):
        rope.apply_scaling([1.0], {"rope_type": "yarn"}, "config.json")
