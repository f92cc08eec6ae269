"""Every committed input through its target, and a bounded run of mutated ones with a fixed number."""

from __future__ import annotations

import os
import subprocess
from itertools import islice
from pathlib import Path

import pytest

from tests.fuzz.bounds import BrokenPromiseError, bounded
from tests.fuzz.make_corpus import seeds
from tests.fuzz.mutation import mutations
from tests.fuzz.native import ISAS, build
from tests.fuzz.targets import CORPUS, NAMES, load, seed_files

MAX_CORPUS_BYTES = 200_000
N_MUTATIONS = {"gguf": 800, "safetensors": 1500, "template": 600, "tokenizer": 1000, "snapshot": 1000, "request": 4000}


@pytest.mark.parametrize("name", NAMES)
def test_every_committed_input_is_taken_or_refused_within_bounds(name: str) -> None:
    target, files = load(name), seed_files(name)
    assert files
    for path in files:
        target.run(path.read_bytes())


@pytest.mark.parametrize("name", NAMES)
def test_mutated_inputs_are_taken_or_refused_within_bounds(name: str) -> None:
    target = load(name)
    inputs = mutations([path.read_bytes() for path in seed_files(name)], target.dictionary, seed=5)
    for content in islice(inputs, N_MUTATIONS[name]):
        try:
            target.run(content)
        except Exception as error:
            error.add_note(f"target {name}, input {content!r}")
            raise


def test_the_corpus_is_small_and_its_seeds_are_those_of_the_script(tmp_path: Path) -> None:
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < MAX_CORPUS_BYTES
    for target, files in seeds(tmp_path).items():
        for name, content in files.items():
            assert (CORPUS / target / name).read_bytes() == content, f"{target}/{name}: run tests.fuzz.make_corpus"


def test_an_input_that_takes_too_much_memory_is_a_finding() -> None:
    with pytest.raises(BrokenPromiseError, match="wanted at most 1000"), bounded(max_peak_bytes=1000):
        bytes(100_000)


def test_an_error_that_is_not_ours_is_a_finding() -> None:
    with pytest.raises(KeyError), bounded():
        raise KeyError


def test_mutations_with_the_same_number_are_the_same() -> None:
    first, second = (list(islice(mutations([b"seed", b"other"], [b"word"], 3), 50)) for _ in range(2))
    assert first == second
    assert len(set(first)) > 40


@pytest.mark.slow
@pytest.mark.parametrize("isa", ISAS)
def test_mutated_weights_are_unpacked_within_their_memory(tmp_path: Path, isa: str) -> None:
    program = build(isa, tmp_path)
    if program is None:
        pytest.skip("no C compiler with AddressSanitizer here")
    environment = os.environ | {"ASAN_OPTIONS": "abort_on_error=1"}
    command = [*program.command(5, tmp_path, tmp_path), *program.seeds(CORPUS / "unpack")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
