"""Any byte of a small checkpoint changed, any length cut: it loads or is refused, and memory stays small."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sipd.errors import SafetensorsError, UnsupportedModel
from sipd.weights.safetensors import read_safetensors
from tests.builders import build_safetensors

MAX_PEAK_BYTES = 4 << 20
FILES = ("config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_safetensors(
        tmp_path_factory.mktemp("fuzz"), n_layers=1, d_model=16, d_ff=16, vocab_size=16, n_shards=2
    )


def load_or_refuse(directory: Path, name: str, content: bytes) -> bool:
    """Returns whether the checkpoint loads with one file replaced; restores that file."""
    sound = (directory / name).read_bytes()
    (directory / name).write_bytes(content)
    tracemalloc.start()
    try:
        checkpoint = read_safetensors(directory)
        for tensor in checkpoint.tensors.values():
            assert tensor.file_offset + tensor.n_bytes <= checkpoint.file_sizes[tensor.file_index]
    except (SafetensorsError, UnsupportedModel):
        return False
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        (directory / name).write_bytes(sound)
        assert peak < MAX_PEAK_BYTES
    return True


@pytest.mark.parametrize("name", FILES)
def test_every_byte_changed_is_survived(directory: Path, name: str) -> None:
    sound = (directory / name).read_bytes()
    for at in range(min(len(sound), 1200)):
        content = bytearray(sound)
        content[at] ^= 1 << (at % 8)
        load_or_refuse(directory, name, bytes(content))


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_anywhere_is_refused(directory: Path, name: str) -> None:
    sound = (directory / name).read_bytes()
    for n_bytes in [*range(0, min(len(sound), 1200), 5), len(sound) - 1]:
        assert not load_or_refuse(directory, name, sound[:n_bytes])


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_random_bytes_written_over_a_file_are_survived(directory: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(FILES))
    content = bytearray((directory / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, min(len(content), 1200) - 1))
        patch = data.draw(
            st.one_of(st.binary(min_size=1, max_size=8), st.sampled_from([b"[[[[", b'"', b"1e999", b"}"]))
        )
        content[at : at + len(patch)] = patch
    load_or_refuse(directory, name, bytes(content))
