"""The daemon's certificate files: read, and checked by a handshake in memory before any client meets them.

Invariant: what is returned is exactly what was checked, so a pair that is half replaced never comes into use.
"""

from __future__ import annotations

import logging
import ssl
import time
from dataclasses import dataclass
from pathlib import Path

from sipd.errors import ConfigError
from sipd.plain_file import read_plain_file

_LOG = logging.getLogger("sipd.tls")
_NOT_YET_VALID, _EXPIRED = 9, 10  # X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED of OpenSSL
_SOON_S = 30 * 86400.0


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Where the PEM files are."""

    certificate: Path
    key: Path
    client_ca: Path | None


@dataclass(frozen=True, slots=True)
class Certificates:
    """What the PEM files hold."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None


def read_certificates(files: CertificateFiles) -> Certificates:
    """Returns the files' bytes; raises ConfigError naming the setting, the file, what was found and what was wanted.

    A certificate that begins in the future is only warned about: boards without a clock of their own start in the past.
    """
    found = _read(files)
    _check_pem(files, found)
    _check_lifetime(files.certificate, _check_pair(files), found.certificate.decode("ascii", "replace"))
    if found.client_ca is not None and files.client_ca is not None:
        _check_client_ca(files.client_ca, found.client_ca)
    if _read(files) != found:
        raise ConfigError("tls_cert", f"{files.certificate}: changed while it was read, wanted files that are complete")
    return found


def _read(files: CertificateFiles) -> Certificates:
    client_ca = None if files.client_ca is None else _read_one("tls_client_ca", files.client_ca)
    return Certificates(_read_one("tls_cert", files.certificate), _read_one("tls_key", files.key), client_ca)


def _read_one(setting: str, path: Path) -> bytes:
    try:
        return read_plain_file(path)
    except OSError as error:
        found = f"{error.strerror}, wanted a PEM file that the daemon may read" if error.strerror else error
        raise ConfigError(setting, f"{path}: {found}") from error


def _check_pem(files: CertificateFiles, found: Certificates) -> None:
    """Tells apart what OpenSSL reports with one and the same error."""
    if b"-----BEGIN CERTIFICATE-----" not in found.certificate:
        raise ConfigError("tls_cert", f"{files.certificate}: holds no certificate, wanted PEM (BEGIN CERTIFICATE)")
    if b"PRIVATE KEY-----" not in found.key:
        raise ConfigError("tls_key", f"{files.key}: holds no private key, wanted PEM (BEGIN PRIVATE KEY)")
    if b"ENCRYPTED" in found.key:
        raise ConfigError("tls_key", f"{files.key}: is locked with a passphrase, wanted a key without one")
    if files.key.stat().st_mode & 0o007:
        _LOG.warning("%s can be read by every user, wanted mode 0600 or 0640", files.key)


def _check_pair(files: CertificateFiles) -> ssl.SSLContext:
    """Returns a server's context; raises ConfigError when key and certificate are none or no pair."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(files.certificate, files.key, password=lambda: "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                "tls_key", f"{files.key}: is not the key of {files.certificate}, wanted a pair"
            ) from error
        raise ConfigError(
            "tls_cert",
            f"{files.certificate} with {files.key}: {error.reason or error}, wanted a PEM certificate and key",
        ) from error
    except OSError as error:  # gone since it was read
        raise ConfigError("tls_cert", f"{files.certificate} with {files.key}: {error.strerror}") from error
    return context


def _check_lifetime(path: Path, server: ssl.SSLContext, pem: str) -> None:
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate itself is trusted: its issuer is not here
    client.load_verify_locations(cadata=pem)
    now = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    try:
        seen = _handshake(server, client)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == _NOT_YET_VALID:
            _LOG.warning("%s: is not valid yet at %s, which is this machine's clock", path, now)
            return
        if error.verify_code == _EXPIRED:
            raise ConfigError("tls_cert", f"{path}: has expired, wanted one that is valid at {now}") from error
        raise ConfigError("tls_cert", f"{path}: {error.verify_message}, wanted a server's certificate") from error
    except ssl.SSLError as error:
        raise ConfigError("tls_cert", f"{path}: {error.reason or error}, wanted a server's certificate") from error
    if ssl.cert_time_to_seconds(seen) - time.time() < _SOON_S:
        _LOG.warning("%s: expires at %s", path, seen)


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> str:
    """Returns when the server's certificate expires; raises SSLError as the client would."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    serving = server.wrap_bio(to_server, to_client, server_side=True)
    asking = client.wrap_bio(to_client, to_server)
    for side in (asking, serving, asking):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    expires_at = (asking.getpeercert() or {}).get("notAfter")
    assert isinstance(expires_at, str)
    return expires_at


def _check_client_ca(path: Path, pem: bytes) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=pem.decode("ascii", "replace"))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError("tls_client_ca", f"{path}: holds no certificate, wanted PEM (BEGIN CERTIFICATE)") from error
    authorities = context.get_ca_certs()
    if not authorities:
        raise ConfigError("tls_client_ca", f"{path}: holds no authority's certificate (CA:TRUE), wanted at least one")
    expiries = [str(each["notAfter"]) for each in authorities]
    if all(ssl.cert_time_to_seconds(expiry) < time.time() for expiry in expiries):
        raise ConfigError("tls_client_ca", f"{path}: has expired at {expiries[0]}, wanted one that is valid now")
