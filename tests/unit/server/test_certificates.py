"""Every way a certificate file can be bad is refused at start by its setting and its name."""

from __future__ import annotations

import logging
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from sipd.errors import ConfigError
from sipd.server import certificates
from sipd.server.certificates import CertificateFiles, read_certificates
from tests.certificates import TlsFolder, make_dated, make_tls_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> TlsFolder:
    return make_tls_folder(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def files(folder: TlsFolder) -> CertificateFiles:
    return CertificateFiles(folder.path / "server.crt", folder.path / "server.key", folder.path / "ca.crt")


def refused(files: CertificateFiles) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read_certificates(files)
    return caught.value


def test_what_is_read_is_what_the_files_hold(files: CertificateFiles, folder: TlsFolder) -> None:
    found = read_certificates(files)
    assert found.certificate == folder.read("server.crt")
    assert (found.key, found.client_ca) == (folder.read("server.key"), folder.read("ca.crt"))
    assert read_certificates(replace(files, client_ca=None)).client_ca is None


@pytest.mark.parametrize(
    ("field", "setting"), [("certificate", "tls_cert"), ("key", "tls_key"), ("client_ca", "tls_client_ca")]
)
def test_a_file_that_is_missing_or_no_pem_is_named(
    files: CertificateFiles, tmp_path: Path, field: str, setting: str
) -> None:
    missing, text = tmp_path / "missing.pem", tmp_path / "text.pem"
    text.write_text("no certificate")
    for path, problem in ((missing, "No such file"), (text, "holds no ")):
        error = refused(replace(files, **{field: path}))
        assert error.setting == setting
        assert f"{path}: {problem}" in str(error)
        assert "wanted" in str(error)


def test_the_key_of_another_certificate_is_refused(files: CertificateFiles, folder: TlsFolder) -> None:
    error = refused(replace(files, key=folder.path / "client-phone.key"))
    assert error.setting == "tls_key"
    assert f"is not the key of {files.certificate}" in str(error)


def test_a_key_behind_a_passphrase_is_refused_without_asking_for_it(files: CertificateFiles, tmp_path: Path) -> None:
    locked = tmp_path / "locked.key"
    locked.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIGb\n-----END ENCRYPTED PRIVATE KEY-----\n")
    assert "is locked with a passphrase" in str(refused(replace(files, key=locked)))


def test_damaged_pem_is_refused(files: CertificateFiles, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.crt"
    damaged.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    assert str(damaged) in str(refused(replace(files, certificate=damaged)))


def test_a_clients_certificate_cannot_serve(folder: TlsFolder) -> None:
    error = refused(CertificateFiles(folder.path / "client-phone.crt", folder.path / "client-phone.key", None))
    assert "purpose" in str(error)


def test_a_servers_certificate_is_no_client_authority(files: CertificateFiles) -> None:
    error = refused(replace(files, client_ca=files.certificate))
    assert error.setting == "tls_client_ca"
    assert "CA:TRUE" in str(error)


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    certificate, key = make_dated(tmp_path, "20200101000000Z", "20210101000000Z")
    error = refused(CertificateFiles(certificate, key, None))
    assert f"{certificate}: has expired, wanted one that is valid at 20" in str(error)


def test_a_certificate_of_the_future_is_warned_about_since_the_clock_may_be_wrong(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = make_dated(tmp_path, "20480101000000Z", "20490101000000Z")
    with caplog.at_level(logging.WARNING, "sipd.tls"):
        read_certificates(CertificateFiles(certificate, key, None))
    assert f"{certificate}: is not valid yet" in caplog.text


def test_an_expired_client_authority_is_refused(
    files: CertificateFiles, monkeypatch: pytest.MonkeyPatch, folder: TlsFolder
) -> None:
    context = ssl.create_default_context(cadata=folder.read("ca.crt").decode())
    expiry = ssl.cert_time_to_seconds(str(context.get_ca_certs()[0]["notAfter"]))
    monkeypatch.setattr("sipd.server.certificates.time.time", lambda: expiry + 1)
    error = refused(files)
    assert error.setting == "tls_client_ca"
    assert "has expired at" in str(error)


def test_a_certificate_near_its_end_is_warned_about(
    files: CertificateFiles, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level(logging.WARNING, "sipd.tls"):
        read_certificates(files)
        assert caplog.text == ""
        monkeypatch.setattr(certificates, "_SOON_S", 101 * 86400.0)
        read_certificates(files)
    assert f"{files.certificate}: expires at" in caplog.text


def test_a_key_that_everyone_can_read_is_warned_about(
    files: CertificateFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = tmp_path / "open.key"
    key.write_bytes(files.key.read_bytes())
    key.chmod(0o644)
    with caplog.at_level(logging.WARNING, "sipd.tls"):
        read_certificates(replace(files, key=key))
    assert f"{key} can be read by every user" in caplog.text


def test_files_that_change_while_they_are_read_are_refused(
    files: CertificateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = certificates._read
    versions = iter([b"", b"\n"])

    def read_and_change(of: CertificateFiles) -> certificates.Certificates:
        found = read(of)
        return replace(found, certificate=found.certificate + next(versions))

    monkeypatch.setattr(certificates, "_read", read_and_change)
    assert "changed while it was read" in str(refused(files))
