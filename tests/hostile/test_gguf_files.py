"""What is not a model at all, named model.gguf; and what must not happen beside a real one."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from sipd.errors import EX_CONFIG, ModelError
from sipd.weights.checkpoint import open_checkpoint
from tests.builders import build_gguf, build_safetensors


def refuse(path: Path, match: str) -> None:
    with pytest.raises(ModelError, match=match) as fault:
        open_checkpoint(path)
    assert str(path) in str(fault.value)
    assert "\n" not in str(fault.value)
    assert fault.value.exit_code == EX_CONFIG


def test_a_text_file_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_text("Hello, I am a text file.\n")
    refuse(path, "found b'Hell', wanted b'GGUF': not a GGUF file")


@pytest.mark.parametrize("content", [b"", b"G", b"GGU"])
def test_a_file_shorter_than_the_magic_is_no_model(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    refuse(path, "not a GGUF file")


@pytest.mark.parametrize("n_bytes", [4, 7, 8, 15, 16, 23])
def test_a_file_cut_in_its_preamble_names_what_is_missing(tmp_path: Path, n_bytes: int) -> None:
    path = build_gguf(tmp_path / "model.gguf")
    path.write_bytes(path.read_bytes()[:n_bytes])
    refuse(path, "the file ends inside the|bytes are left")


def test_a_git_lfs_pointer_is_told_from_a_model(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    refuse(path, "found a Git LFS pointer")


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    refuse(tmp_path / "model.gguf", "cannot be opened: No such file or directory")


def test_a_dangling_link_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.symlink_to(tmp_path / "gone")
    refuse(path, "cannot be opened: No such file or directory")


def test_a_path_with_a_nul_byte_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be opened: embedded null byte"):
        open_checkpoint(tmp_path / "model\0.gguf")


def test_a_directory_without_a_checkpoint_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.mkdir()
    refuse(path, r"found a directory without config\.json")


def test_a_directory_that_holds_a_gguf_file_says_which_path_to_give(tmp_path: Path) -> None:
    build_gguf(tmp_path / "tiny.gguf")
    refuse(tmp_path, r"it holds tiny\.gguf, give the path of that file")


def test_a_single_safetensors_file_says_which_path_to_give(tmp_path: Path) -> None:
    refuse(build_safetensors(tmp_path) / "model.safetensors", "wanted its directory")


def test_an_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build_gguf(tmp_path / "model.gguf")

    def denied(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", denied)  # root may read anything, so the system's answer is made up
    refuse(path, "cannot be opened: Permission denied")


def test_a_file_below_a_directory_that_may_not_be_searched_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build_gguf(tmp_path / "model.gguf")

    def denied(*_: object, **__: object) -> os.stat_result:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", denied)
        refuse(path, "cannot be opened: Permission denied")


def test_an_unreadable_directory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", denied)
    refuse(tmp_path, "cannot be read: Permission denied")


def test_a_failing_read_is_named_with_its_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build_gguf(tmp_path / "model.gguf")
    real_open = os.open

    def write_only(name: str, _: int) -> int:
        return real_open(name, os.O_WRONLY)

    monkeypatch.setattr(os, "open", write_only)
    refuse(path, "at byte 0: reading .* failed")


def test_a_fifo_is_refused_without_waiting(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    os.mkfifo(path)
    refuse(path, "found a FIFO, wanted a plain file")


def test_a_socket_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        refuse(path, "found a socket, wanted a plain file")


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device_is_refused(device: str) -> None:
    refuse(Path(device), "found a character device, wanted a plain file")


def test_a_file_swapped_for_a_fifo_between_look_and_open_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build_gguf(tmp_path / "model.gguf")
    real_open = os.open

    def swapped(name: Path, flags: int) -> int:
        name.unlink()
        os.mkfifo(name)
        return real_open(name, flags)

    monkeypatch.setattr(os, "open", swapped)
    refuse(path, "found a FIFO, wanted a plain file")


def test_a_file_that_shrinks_while_its_header_is_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build_gguf(tmp_path / "model.gguf")
    real_fstat = os.fstat

    def before_shrinking(descriptor: int) -> os.stat_result:
        found = real_fstat(descriptor)
        os.truncate(path, 100)
        return found

    monkeypatch.setattr(os, "fstat", before_shrinking)
    refuse(path, "at byte 100: the file ended, wanted")


def test_nothing_is_written_beside_the_model(tmp_path: Path) -> None:
    build_gguf(tmp_path / "model.gguf")
    build_safetensors(tmp_path / "hf", n_shards=2)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    (tmp_path / "hf").chmod(0o555)
    tmp_path.chmod(0o555)
    open_checkpoint(tmp_path / "model.gguf")
    open_checkpoint(tmp_path / "hf")
    tmp_path.chmod(0o755)
    (tmp_path / "hf").chmod(0o755)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_the_model_is_never_opened_for_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_safetensors(tmp_path / "hf", n_shards=2)
    flags_seen: list[int] = []
    real_open = os.open

    def watching(name: Path, flags: int) -> int:
        flags_seen.append(flags)
        return real_open(name, flags)

    monkeypatch.setattr(os, "open", watching)
    open_checkpoint(build_gguf(tmp_path / "model.gguf"))
    open_checkpoint(tmp_path / "hf")
    assert len(flags_seen) == 5
    assert all(flags & (os.O_ACCMODE | os.O_CREAT | os.O_TRUNC) == os.O_RDONLY for flags in flags_seen)
