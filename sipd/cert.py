"""`sipd cert`: a certificate authority for one household, the server's certificate, and clients' ones.

Made by the openssl program, which the keys never leave: no library for it has to live in the daemon's environment.
Invariant: nothing is overwritten unless asked for, keys have mode 0600, files appear only once all of them are made.
"""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sipd.errors import ConfigError
from sipd.machine_names import alternative_name, check_name, machine_names, unique
from sipd.stored_file import commit

_AUTHORITY_DAYS = 3650
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-sha256")
_KEY_MODE, _CERTIFICATE_MODE = 0o600, 0o644
_EXTENSIONS = """\
[req]
distinguished_name = subject
prompt = no
[subject]
CN = {common_name}
[authority]
basicConstraints = critical,CA:TRUE,pathlen:0
keyUsage = critical,keyCertSign,cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = {names}
[client]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


def run_cert_init(folder: Path, names: Sequence[str], *, renew: bool, days: int) -> int:
    """Makes ca and server files in `folder`, or with `renew` a new server certificate of the same authority and key.

    The key stays as long as its file is there: a daemon that got it from systemd at its start can go on with it.
    Returns the exit code; raises ConfigError naming the file that is in the way, missing, or cannot be written.
    """
    folder = folder.absolute()
    authority, server = _Pair(folder, "ca"), _Pair(folder, "server")
    if renew:
        authority.require()
        names = [*names, *_names_of(server.certificate)]
    else:
        for pair in (authority, server):
            pair.refuse_existing("wanted a free name; --renew replaces only the server's certificate")
    all_names = unique([*machine_names(), *map(check_name, names)])
    with _Workshop(folder, all_names) as workshop:
        made = [server]
        if not renew:
            workshop.make_authority(authority)
            made.insert(0, authority)
        workshop.sign(authority, server, all_names[0], "server", days)
        workshop.deliver(made)
    for pair in made:
        print(f"wrote {pair.certificate}; its key is {pair.key}")
    print(f"names: {', '.join(all_names)}")
    print(f'in sipd.toml:\n  tls_cert = "{server.certificate}"\n  tls_key = "{server.key}"')
    print(f"copy to clients: {authority.certificate} (sipc --ca ca.crt --target {all_names[0]}:50051)")
    if not renew:
        print(f"{authority.key} can sign for any name: it is needed for --renew and client certificates only")
    return 0


def run_cert_client(folder: Path, name: str, *, days: int) -> int:
    """Makes a client's certificate and key in `folder`; returns the exit code. Raises ConfigError."""
    folder = folder.absolute()
    authority, client = _Pair(folder, "ca"), _Pair(folder, f"client-{check_name(name)}")
    authority.require()
    client.refuse_existing("wanted a free name")
    with _Workshop(folder, [name]) as workshop:
        workshop.sign(authority, client, name, "client", days)
        workshop.deliver([client])
    print(f"wrote {client.certificate} and {client.key}")
    print(f"copy to the client: ca.crt and these (sipc --ca ca.crt --cert {client.certificate.name} --key …)")
    print(f'in sipd.toml, so that only such clients get in:\n  tls_client_ca = "{authority.certificate}"')
    return 0


class _Pair:
    """Where a certificate and its key are to be."""

    def __init__(self, folder: Path, stem: str) -> None:
        self.certificate = folder / f"{stem}.crt"
        self.key = folder / f"{stem}.key"

    def require(self) -> None:
        for path in (self.certificate, self.key):
            if not path.is_file():
                raise ConfigError("cert", f"{path}: not there, wanted the authority that `sipd cert init` made")

    def refuse_existing(self, wanted: str) -> None:
        for path in (self.certificate, self.key):
            if path.exists() or path.is_symlink():
                raise ConfigError("cert", f"{path}: exists already, {wanted}")


class _Workshop:
    """A private folder inside the target's, so that finished files can be renamed into place."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder = folder
        self._names = names

    def __enter__(self) -> _Workshop:
        try:
            self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._bench = tempfile.TemporaryDirectory(prefix=".cert-", dir=self._folder)
        except OSError as error:
            raise ConfigError("cert", f"{self._folder}: {error.strerror}, wanted a folder to write to") from error
        return self

    def __exit__(self, *_error: object) -> None:
        self._bench.cleanup()

    def make_authority(self, authority: _Pair) -> None:
        """Makes a certificate that signs others."""
        extensions = self._write_extensions(f"sipd authority of {self._names[0]}")
        _openssl(
            *("req", "-x509", *_NEW_KEY, "-days", str(_AUTHORITY_DAYS), "-set_serial", _serial()),
            *("-config", extensions, "-extensions", "authority"),
            *("-keyout", self._part(authority.key), "-out", self._part(authority.certificate)),
        )

    def sign(self, authority: _Pair, pair: _Pair, common_name: str, role: str, days: int) -> None:
        """Makes a key and a certificate for it: of the authority under way, or of the one that was there."""
        extensions = self._write_extensions(common_name)
        request = self._part(Path("request"))
        key = ("-key", str(pair.key)) if pair.key.exists() else (*_NEW_KEY, "-keyout", self._part(pair.key))
        _openssl("req", "-new", *key, "-config", extensions, "-out", request)
        made = Path(self._part(authority.key)).exists()
        signer = [self._part(path) if made else str(path) for path in (authority.certificate, authority.key)]
        _openssl(
            *("x509", "-req", "-in", request, "-CA", signer[0], "-CAkey", signer[1], "-sha256"),
            *("-set_serial", _serial(), "-days", str(days), "-extfile", extensions, "-extensions", role),
            *("-out", self._part(pair.certificate)),
        )

    def deliver(self, pairs: Sequence[_Pair]) -> None:
        """Renames what was made; keys first, so that a certificate is never there without its key."""
        for pair in pairs:
            for path, mode in ((pair.key, _KEY_MODE), (pair.certificate, _CERTIFICATE_MODE)):
                part = Path(self._part(path))
                if not part.exists():  # the key of a renewal
                    continue
                part.chmod(mode)
                try:
                    commit(part, path)
                except OSError as error:
                    raise ConfigError("cert", f"{path}: {error.strerror}") from error

    def _part(self, path: Path) -> str:
        return f"{self._bench.name}/{path.name}"

    def _write_extensions(self, common_name: str) -> str:
        path = Path(self._part(Path("extensions")))
        names = ",".join(map(alternative_name, self._names))
        path.write_text(_EXTENSIONS.format(common_name=common_name[:64], names=names), "ascii")  # 64: X.520's bound
        return str(path)


def _names_of(certificate: Path) -> list[str]:
    """Returns the DNS names of the certificate that is replaced: clients may rely on them; addresses are told anew."""
    if not certificate.is_file():
        return []
    text = _openssl("x509", "-in", str(certificate), "-noout", "-text")
    return re.findall(r"\bDNS:([^,\s]+)", text)


def _serial() -> str:
    return f"0x{secrets.token_hex(16)}"


def _openssl(*arguments: str) -> str:
    program = shutil.which("openssl")
    if program is None:
        raise ConfigError("cert", "the program openssl is not installed, wanted it (apt install openssl)")
    command = [program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, umask=0o077)  # noqa: S603 - no shell
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise ConfigError("cert", f"openssl {arguments[0]} failed: {lines[-1]}")
    return done.stdout
