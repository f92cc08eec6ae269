"""Certificates for tests: made by sipd's own command, and by openssl where that command makes no such thing."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from sipd.cert import run_cert_client, run_cert_init

_CA_CONFIG = """\
[ca]
default_ca = dated
[dated]
database = index
new_certs_dir = .
serial = serial
default_md = sha256
policy = any
[any]
commonName = supplied
"""


@dataclass(frozen=True, slots=True)
class TlsFolder:
    """An authority, a server's certificate and one client's, named "phone"."""

    path: Path

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def flags(self, *, with_clients: bool = False) -> list[str]:
        """Returns the daemon's flags."""
        found = ["--tls-cert", f"{self.path}/server.crt", "--tls-key", f"{self.path}/server.key"]
        return found + (["--tls-client-ca", f"{self.path}/ca.crt"] if with_clients else [])

    def credentials(self, client: str | None = None) -> grpc.ChannelCredentials:
        """Returns a client's side, with the certificate of `client` or none."""
        if client is None:
            return grpc.ssl_channel_credentials(self.read("ca.crt"))
        return grpc.ssl_channel_credentials(
            self.read("ca.crt"), self.read(f"client-{client}.key"), self.read(f"client-{client}.crt")
        )


def require_openssl() -> str:
    """Returns the program; skips the test without it."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not installed")
    return program


def make_tls_folder(path: Path) -> TlsFolder:
    """Fills a new folder; skips the test without openssl."""
    require_openssl()
    run_cert_init(path, [], renew=False, days=100)
    run_cert_client(path, "phone", days=100)
    return TlsFolder(path)


def make_dated(folder: Path, begin: str, end: str) -> tuple[Path, Path]:
    """Makes a certificate that is valid from `begin` to `end` (YYYYMMDDHHMMSSZ); returns its path and its key's."""
    openssl = require_openssl()
    (folder / "index").touch()
    (folder / "serial").write_text("01")
    (folder / "ca.cnf").write_text(_CA_CONFIG)
    request = (
        "req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=dated -keyout d.key -out d.csr"
    )
    sign = f"ca -batch -config ca.cnf -selfsign -keyfile d.key -in d.csr -startdate {begin} -enddate {end} -out d.crt"
    for command in (request, sign):
        subprocess.run([openssl, *command.split()], cwd=folder, check=True, capture_output=True)
    return folder / "d.crt", folder / "d.key"
