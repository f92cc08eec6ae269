"""TLS of the addresses that the network reaches; certificates are replaced while connections live on.

Invariant: a handshake sees one whole set of certificates, the one of the last good reload.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, cast

import grpc

from sipd.config import Config
from sipd.server.certificates import CertificateFiles, Certificates, read_certificates

Fetch: TypeAlias = Callable[[], grpc.ServerCertificateConfiguration]


class ServerTls:
    """Owned by the event loop's thread; gRPC's threads only read the reference to the current certificates."""

    def __init__(self, files: CertificateFiles) -> None:
        self._files = files
        self._current = read_certificates(files)

    @property
    def requires_client_certificate(self) -> bool:
        """True when clients prove who they are in the handshake; fixed at start."""
        return self._files.client_ca is not None

    def reload(self) -> str:
        """Reads the files again, returns what is in use; raises ConfigError and keeps the old ones otherwise."""
        self._current = read_certificates(self._files)
        return f"the certificate {self._files.certificate}"

    def credentials(self) -> grpc.ServerCredentials:
        """Returns new credentials for one port: each port asks for changes on its own."""
        first = self._current
        fetch = cast(Fetch, self._changes_after(first))  # None is allowed, though grpc's stubs do not know
        return grpc.dynamic_ssl_server_credentials(_configuration(first), fetch, self.requires_client_certificate)

    def _changes_after(self, seen: Certificates) -> Callable[[], grpc.ServerCertificateConfiguration | None]:
        """Returns what gRPC asks at every handshake: None while nothing changed, which spares a new TLS context."""

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal seen
            current = self._current
            if current is seen:
                return None
            seen = current
            return _configuration(current)

        return fetch


def configured_tls(config: Config) -> ServerTls | None:
    """Returns the TLS that the settings ask for; raises ConfigError for files that cannot serve."""
    if config.tls_cert is None or config.tls_key is None:
        return None
    return ServerTls(CertificateFiles(config.tls_cert, config.tls_key, config.tls_client_ca))


def _configuration(found: Certificates) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(found.key, found.certificate)], found.client_ca)
