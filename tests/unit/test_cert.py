"""`sipd cert`: what it makes, what it refuses to overwrite, what clients can rely on."""

from __future__ import annotations

import re
import ssl
import stat
import subprocess
from pathlib import Path

import pytest

from sipd.cert import run_cert_client, run_cert_init
from sipd.cli import main
from sipd.errors import ConfigError
from sipd.machine_names import machine_names
from sipd.server.certificates import CertificateFiles, read_certificates
from tests.certificates import TlsFolder, make_tls_folder, require_openssl


@pytest.fixture
def folder(tmp_path: Path) -> TlsFolder:
    return make_tls_folder(tmp_path / "tls")


def names_in(certificate: Path) -> list[str]:
    command = [require_openssl(), "x509", "-in", str(certificate), "-noout", "-ext", "subjectAltName"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return re.findall(r"(?:DNS|IP Address):([^,\s]+)", text)


def is_signed(folder: Path, name: str) -> bool:
    command = [require_openssl(), "verify", "-x509_strict", "-CAfile", str(folder / "ca.crt"), str(folder / name)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def test_the_authority_signs_the_server_and_the_client(folder: TlsFolder) -> None:
    assert is_signed(folder.path, "server.crt")
    assert is_signed(folder.path, "client-phone.crt")


def test_keys_can_be_read_by_their_owner_alone(folder: TlsFolder) -> None:
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.path.iterdir()}
    assert modes == {
        **{f"{stem}.key": 0o600 for stem in ("ca", "server", "client-phone")},
        **{f"{stem}.crt": 0o644 for stem in ("ca", "server", "client-phone")},
    }


def test_the_server_has_the_names_of_the_machine(folder: TlsFolder) -> None:
    found = names_in(folder.path / "server.crt")
    assert found[: len(machine_names())][0] == machine_names()[0]
    assert {"localhost", "127.0.0.1", *(name for name in machine_names() if ":" not in name)} <= set(found)


@pytest.mark.parametrize("there", ["ca.crt", "ca.key", "server.crt", "server.key"])
def test_nothing_is_overwritten(tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_text("mine")
    with pytest.raises(ConfigError, match=f"{there}: exists already.*--renew"):
        run_cert_init(tmp_path, [], renew=False, days=10)
    assert [path.name for path in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_text() == "mine"


def test_a_renewal_replaces_the_certificate_and_keeps_keys_authority_and_names(folder: TlsFolder) -> None:
    run_cert_init(folder.path, ["board.example"], renew=True, days=10)
    before = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    run_cert_init(folder.path, ["10.1.2.3"], renew=True, days=10)
    after = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    assert {name for name in before if before[name] != after[name]} == {"server.crt"}
    assert {"board.example", "10.1.2.3"} <= set(names_in(folder.path / "server.crt"))
    assert is_signed(folder.path, "server.crt")


def test_a_renewal_after_the_key_was_taken_away_makes_a_new_one(folder: TlsFolder) -> None:
    before = folder.read("server.key")
    (folder.path / "server.key").unlink()
    run_cert_init(folder.path, [], renew=True, days=10)
    assert folder.read("server.key") != before
    assert stat.S_IMODE((folder.path / "server.key").stat().st_mode) == 0o600
    read_certificates(CertificateFiles(folder.path / "server.crt", folder.path / "server.key", None))


def test_a_renewal_without_an_authority_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ca\.crt: not there"):
        run_cert_init(tmp_path, [], renew=True, days=10)


@pytest.mark.parametrize("name", ["a,b", "a\nb", "", "x=y", "-a", "a" * 254, "fe80::1%eth0", "[client]"])
def test_a_name_that_could_change_the_certificate_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="wanted a DNS name"):
        run_cert_init(tmp_path, [name], renew=False, days=10)
    assert list(tmp_path.iterdir()) == []


def test_a_client_is_not_made_twice(folder: TlsFolder) -> None:
    with pytest.raises(ConfigError, match=r"client-phone\.crt: exists already"):
        run_cert_client(folder.path, "phone", days=10)


def test_a_missing_openssl_is_told_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="apt install openssl"):
        run_cert_init(tmp_path / "tls", [], renew=False, days=10)
    assert list((tmp_path / "tls").iterdir()) == []


def test_a_refusal_of_openssl_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "openssl").write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
    (tmp_path / "openssl").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="openssl req failed: broken"):
        run_cert_init(tmp_path / "tls", [], renew=False, days=10)
    assert list((tmp_path / "tls").iterdir()) == []


def test_the_command_tells_what_to_configure_and_what_to_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_openssl()
    assert main(["cert", "init", "--dir", str(tmp_path), "--name", "board.example", "--days", "30"]) == 0
    told = capsys.readouterr().out
    assert f'tls_cert = "{tmp_path}/server.crt"' in told
    assert f"copy to clients: {tmp_path}/ca.crt" in told
    assert "board.example" in told
    assert main(["cert", "client", "phone", "--dir", str(tmp_path)]) == 0
    assert f'tls_client_ca = "{tmp_path}/ca.crt"' in capsys.readouterr().out
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "client-phone.crt", tmp_path / "client-phone.key")
