"""Any byte of a small GGUF file changed, any length cut: it loads or is refused, and memory stays small."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sipd.errors import GgufError, UnsupportedModel
from sipd.weights.gguf import read_gguf
from sipd.weights.gguf_array import GgufArray
from sipd.weights.tensor_table import QuantType
from tests.builders import build_gguf

MAX_PEAK_BYTES = 4 << 20


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.fixture(scope="module")
def sound(directory: Path) -> bytes:
    path = build_gguf(
        directory / "sound.gguf", n_layers=1, d_model=32, n_heads=2, n_kv_heads=1, d_ff=32, vocab_size=270,
        quant=QuantType.Q8_0, tied=True, with_vocab="gpt2", rope_freqs=True, metadata={"a": [[1, 2], [3]], "b": 0.5},
    )  # fmt: skip
    return path.read_bytes()


def load_or_refuse(path: Path, content: bytes) -> bool:
    """Returns whether the file loads; any error but a refusal fails the test, as does a hunger for memory."""
    path.write_bytes(content)
    tracemalloc.start()
    try:
        checkpoint = read_gguf(path)
        for value in checkpoint.metadata.values():
            if isinstance(value, GgufArray):
                list(value)
        for tensor in checkpoint.tensors.values():
            assert tensor.file_offset + tensor.n_bytes <= len(content)
    except (GgufError, UnsupportedModel):
        return False
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MAX_PEAK_BYTES
    return True


def header_bytes(directory: Path, sound: bytes) -> int:
    path = directory / "header.gguf"
    path.write_bytes(sound)
    return min(tensor.file_offset for tensor in read_gguf(path).tensors.values())


def test_every_bit_flipped_in_the_header_is_survived(directory: Path, sound: bytes) -> None:
    end = header_bytes(directory, sound)
    for at in range(0, end, 3):
        content = bytearray(sound)
        content[at] ^= 1 << (at % 8)
        load_or_refuse(directory / "flipped.gguf", bytes(content))


def test_a_file_cut_anywhere_is_refused(directory: Path, sound: bytes) -> None:
    end = header_bytes(directory, sound)
    last = len(sound) - 1
    for n_bytes in [*range(0, end, 7), *range(end, last, 997), last]:
        assert not load_or_refuse(directory / "cut.gguf", sound[:n_bytes])


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_random_bytes_written_over_the_header_are_survived(directory: Path, sound: bytes, data: st.DataObject) -> None:
    end = header_bytes(directory, sound)
    content = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, end - 1))
        patch = data.draw(st.one_of(st.binary(min_size=1, max_size=8), st.just(b"\xff" * 8), st.just(bytes(8))))
        content[at : at + len(patch)] = patch
    load_or_refuse(directory / "random.gguf", bytes(content))


@settings(max_examples=100, deadline=None)
@given(tail=st.binary(max_size=200))
def test_random_bytes_after_a_sound_preamble_are_survived(directory: Path, sound: bytes, tail: bytes) -> None:
    load_or_refuse(directory / "tail.gguf", sound[:8] + tail)
