from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from sipd.cli import main
from sipd.config import load_config
from sipd.errors import ConfigError
from sipd.plain_file import read_plain_file
from sipd.server.auth import TokenFile
from sipd.server.certificates import CertificateFiles, read_certificates

# Each of these tests would wait for ever, or until memory is full, where a file is opened and read as it comes.


def special(folder: Path, kind: str) -> Path:
    path = folder / "special"
    if kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a directory":
        path.mkdir()
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    else:
        path.symlink_to("/dev/full")
    return path


KINDS = ("a FIFO", "a directory", "a socket", "a character device")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_plain_file_is_refused_by_its_kind(tmp_path: Path, kind: str) -> None:
    with pytest.raises(OSError, match=f"^found {kind}, wanted a plain file$"):
        read_plain_file(special(tmp_path, kind))


def test_a_plain_file_is_read_whole_and_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_plain_file(tmp_path / "link") == b"x" * 100_000


def test_a_file_that_is_too_long_is_refused_with_both_sizes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 11)
    assert len(read_plain_file(tmp_path / "file", 11)) == 11
    with pytest.raises(OSError, match="found 11 bytes, wanted at most 10"):
        read_plain_file(tmp_path / "file", 10)


def test_a_file_that_is_missing_keeps_the_systems_words(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="No such file"):
        read_plain_file(tmp_path / "absent")


@pytest.mark.parametrize("kind", KINDS)
def test_settings_are_read_from_plain_files_only(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ConfigError, match=f"config: .*special: found {kind}, wanted a plain file"):
        load_config({}, {}, special(tmp_path, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_read_from_plain_files_only(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ConfigError, match=f"token_file: .*special: found {kind}, wanted a plain file"):
        TokenFile(special(tmp_path, kind))


@pytest.mark.parametrize("setting", ["tls_cert", "tls_key", "tls_client_ca"])
def test_certificates_are_read_from_plain_files_only(tmp_path: Path, setting: str) -> None:
    fifo, plain = special(tmp_path, "a FIFO"), tmp_path / "plain"
    plain.write_bytes(b"")
    names = ("tls_cert", "tls_key", "tls_client_ca")
    with pytest.raises(ConfigError, match=f"{setting}: .*special: found a FIFO, wanted a plain file"):
        read_certificates(CertificateFiles(*(fifo if name == setting else plain for name in names)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_token_is_added_to_a_plain_file_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    assert main(["token", "new", "kitchen", "--file", str(special(tmp_path, kind))]) == 78
    told = capsys.readouterr()
    assert told.err.splitlines()[-1].endswith(f"special: found {kind}, wanted a plain file")
    assert told.out == ""
