"""Encrypted connections with certificates on both sides."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from sipd_client import Client, SipdClientError, Tls, cli
from tests.unit.clients.fake_server import Fake, start


@pytest.fixture
def certified(tmp_path: Path) -> Iterator[Fake]:
    """A fake daemon that wants the client to know the certificate in `tmp_path`, which serves for both sides."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    request = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=sipd"
    command = [
        openssl,
        *request.split(),
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-out",
        f"{certificate}",
        "-keyout",
        f"{key}",
    ]
    subprocess.run(command, check=True, capture_output=True)
    pair = (key.read_bytes(), certificate.read_bytes())
    servicer = Fake()
    server = start(servicer, "127.0.0.1:0", grpc.ssl_server_credentials([pair], pair[1], require_client_auth=True))
    yield servicer
    server.stop(None).wait()


def test_a_client_with_a_certificate_is_served(certified: Fake, tmp_path: Path) -> None:
    certificate, key = str(tmp_path / "certificate.pem"), str(tmp_path / "key.pem")
    with Client(certified.target, tls=Tls.from_files(certificate, certificate, key)) as client:
        assert client.model().name == "tiny"
    flags = ["--ca", certificate, "--cert", certificate, "--key", key]
    assert cli.main(["model", "--target", certified.target, *flags]) == 0


def test_a_client_without_a_certificate_is_not_served(certified: Fake, tmp_path: Path) -> None:
    tls = Tls.from_files(str(tmp_path / "certificate.pem"))
    with Client(certified.target, tls=tls) as client, pytest.raises(SipdClientError) as caught:
        client.model()
    assert caught.value.status == "UNAVAILABLE"
