"""Every setting of the daemon: parsed and checked once, frozen afterwards.

Order of precedence: defaults < TOML file < SIPD_* environment < flags. Unknown keys are refused by name, and every
error names the setting, where it came from, what was found and what was wanted. Only this module reads the environment.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sipd.errors import ConfigError
from sipd.foreign_text import sendable
from sipd.listen_address import ListenAddress, parse_listen_address
from sipd.plain_file import read_plain_file
from sipd.size import format_size, parse_size

DEFAULT_FILE = Path("/etc/sipd/sipd.toml")
ISAS = ("auto", "numpy", "portable", "avx2", "avx512vnni", "neon", "neon_dotprod", "neon_i8mm")
# Environment names that start with SIPD_ and are none of the daemon's: the client's and the tests'.
_FOREIGN_ENVIRONMENT = frozenset({"SIPD_CONFIG", "SIPD_TARGET", "SIPD_TOKEN", "SIPD_SHARED"})
_MOST = 2**31 - 1  # what C takes for a count


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The settings in effect; each field's metadata says how it is parsed and what its flag's help reads."""

    model: Path | None = field(default=None, metadata={"kind": "path", "help": "GGUF file or checkpoint directory"})
    model_name: str | None = field(
        default=None, metadata={"kind": "name", "help": "name that requests ask for (default: the file's name)"}
    )
    listen: tuple[ListenAddress, ...] = field(
        default=(ListenAddress("127.0.0.1", 50051),),
        metadata={
            "kind": "listen",
            "help": "unix:PATH or HOST:PORT, repeatable (default: 127.0.0.1:50051; under systemd sipd.sock in its "
            "RuntimeDirectory)",
        },
    )
    budget: int | None = field(
        default=None,
        metadata={"kind": "size", "help": "ceiling on anonymous memory: 512M, 1.5G (default: the cgroup's limit)"},
    )
    context: int | None = field(
        default=None,
        metadata={"kind": "count", "least": 2, "help": "tokens of prompt and reply together (default: by budget)"},
    )
    threads: int | None = field(
        default=None, metadata={"kind": "count", "help": "compute threads (default: the CPUs that are allowed)"}
    )
    max_requests: int = field(default=8, metadata={"kind": "count", "help": "requests that share passes (default: 8)"})
    max_queued: int = field(
        default=32, metadata={"kind": "count", "least": 0, "help": "requests that may wait (default: 32)"}
    )
    rows_per_pass: int | None = field(
        default=None, metadata={"kind": "count", "help": "token positions of one pass (default: by budget)"}
    )
    direct_io: str = field(
        default="auto", metadata={"kind": ("auto", "on", "off"), "help": "bypass the page cache: auto, on, off"}
    )
    isa: str = field(default="auto", metadata={"kind": ISAS, "help": f"kernels: {', '.join(ISAS)}"})
    tile_bytes: int = field(default=1024**2, metadata={"kind": "size", "help": "bytes of one read (default: 1M)"})
    ring_slots: int | None = field(
        default=None, metadata={"kind": "count", "help": "buffers of the ring (default: by budget)"}
    )
    readers: int | None = field(
        default=None,
        metadata={"kind": "count", "most": 64, "help": "reads in flight, 1 to 64 (default: by a probe at start)"},
    )
    pin: bool = field(
        default=True, metadata={"kind": "switch", "help": "keep weights in memory that is left over: on, off"}
    )
    max_prompt_bytes: int = field(
        default=1024**2,
        metadata={"kind": "size", "most": 1024**3, "help": "largest prompt taken (default: by budget, at most 1M)"},
    )
    rows_while_decoding: int | None = field(
        default=None,
        metadata={"kind": "count", "help": "rows of a pass while others decode (default: what storage hides)"},
    )
    prefix_cache: bool = field(
        default=True, metadata={"kind": "switch", "help": "reuse keys and values of common prompt heads: on, off"}
    )
    snapshot_dir: Path | None = field(
        default=None,
        metadata={
            "kind": "path",
            "help": "folder for keys and values of long prompts (default: in systemd's CacheDirectory, else none)",
        },
    )
    snapshot_bytes: int = field(
        default=1024**3, metadata={"kind": "size", "help": "most that snapshots take on disk (default: 1G)"}
    )
    snapshot_min_tokens: int = field(
        default=512, metadata={"kind": "count", "help": "shortest new head worth a snapshot (default: 512)"}
    )
    max_sessions: int = field(
        default=16,
        metadata={"kind": "count", "least": 0, "help": "named sessions whose keys and values are kept (default: 16)"},
    )
    session_idle_s: float = field(
        default=1800.0, metadata={"kind": "seconds", "help": "seconds after which a session is let go (default: 1800)"}
    )
    speculation: bool = field(
        default=True, metadata={"kind": "switch", "help": "draft tokens and verify them in the same pass: on, off"}
    )
    draft_tokens: int = field(
        default=16,
        metadata={"kind": "count", "least": 0, "help": "most tokens drafted at a time (default: 16, by budget)"},
    )
    draft_model: Path | None = field(
        default=None,
        metadata={"kind": "path", "help": "small model of the same vocabulary that drafts, kept in memory whole"},
    )
    max_requests_per_client: int = field(
        default=16, metadata={"kind": "count", "help": "requests of one client, waiting ones included (default: 16)"}
    )
    tls_cert: Path | None = field(
        default=None, metadata={"kind": "path", "help": "server certificate with its chain, PEM"}
    )
    tls_key: Path | None = field(default=None, metadata={"kind": "path", "help": "key of tls_cert, PEM"})
    tls_client_ca: Path | None = field(
        default=None, metadata={"kind": "path", "help": "CA that client certificates must come from, PEM"}
    )
    grace_s: float = field(
        default=20.0, metadata={"kind": "seconds", "help": "seconds that live requests get at a stop (default: 20)"}
    )
    insecure_lan: bool = field(
        default=False, metadata={"kind": "switch", "help": "listen on LAN addresses without TLS or token: on, off"}
    )
    token_file: Path | None = field(
        default=None, metadata={"kind": "path", "help": "file of bearer tokens, lines as `sipd token new` prints them"}
    )
    log_level: str = field(
        default="info", metadata={"kind": ("debug", "info", "warning", "error"), "help": "least level of log lines"}
    )


SETTINGS: tuple[str, ...] = tuple(each.name for each in fields(Config))


def setting_help(name: str) -> str:
    """Returns the help text of a setting's flag."""
    return str(_metadata(name)["help"])


def load_config(flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None = None) -> Config:
    """Returns the checked settings. `flags` holds only what was given; raises ConfigError.

    `file` (or SIPD_CONFIG) must exist when named; the default file is read when it is there. Under systemd the daemon
    listens in its runtime directory unless told otherwise.
    """
    if file is None and environ.get("SIPD_CONFIG"):
        file = Path(environ["SIPD_CONFIG"])
    values: dict[str, Any] = {}
    for source, found in (
        _read_file(file),
        ("environment", _read_environment(environ)),
        ("flag", {name: value for name, value in flags.items() if value is not None}),
    ):
        for name, value in found.items():
            values[name] = _parse(name, value, source)
    if "listen" not in values and environ.get("RUNTIME_DIRECTORY"):
        values["listen"] = _parse("listen", f"unix:{environ['RUNTIME_DIRECTORY'].split(':')[0]}/sipd.sock", "systemd")
    if "snapshot_dir" not in values and environ.get("CACHE_DIRECTORY"):
        values["snapshot_dir"] = Path(environ["CACHE_DIRECTORY"].split(":")[0]) / "snapshots"
    config = Config(**values)
    _check_together(config)
    return config


def default_models_dir(environ: Mapping[str, str]) -> Path:
    """Returns the folder that `sipd pull` fills: under systemd's cache directory, XDG_CACHE_HOME or ~/.cache."""
    if environ.get("CACHE_DIRECTORY"):
        return Path(environ["CACHE_DIRECTORY"].split(":")[0]) / "models"
    base = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "sipd" / "models"


@dataclass(frozen=True, slots=True)
class SystemdEnvironment:
    """What systemd told this process through its environment."""

    notify_socket: str | None
    watchdog_s: float | None
    has_journal_stderr: bool


def read_systemd_environment(environ: Mapping[str, str], pid: int, stderr_id: str | None) -> SystemdEnvironment:
    """Returns systemd's part of the environment; `stderr_id` is "device:inode" of stderr (sd_notify(3), sd-journal)."""
    watchdog = environ.get("WATCHDOG_USEC", "")
    is_ours = environ.get("WATCHDOG_PID", str(pid)) == str(pid)
    stream = environ.get("JOURNAL_STREAM")
    return SystemdEnvironment(
        notify_socket=environ.get("NOTIFY_SOCKET") or None,
        watchdog_s=int(watchdog) / 1e6 if watchdog.isdecimal() and int(watchdog) > 0 and is_ours else None,
        has_journal_stderr=stream is not None and stream == stderr_id,
    )


def _metadata(name: str) -> Mapping[str, Any]:
    return next(each.metadata for each in fields(Config) if each.name == name)


def _read_file(file: Path | None) -> tuple[str, dict[str, object]]:
    if file is None:
        if not DEFAULT_FILE.exists():
            return "", {}
        file = DEFAULT_FILE
    try:
        found: dict[str, object] = tomllib.loads(read_plain_file(file).decode())
    except OSError as error:
        raise ConfigError("config", f"{file}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("config", f"{file}: not a TOML file: {error}") from error
    for name in found:
        if name not in SETTINGS:
            raise ConfigError(name, f"unknown setting in {file}, wanted one of {', '.join(SETTINGS)}")
    return str(file), found


def _read_environment(environ: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in environ.items():
        if not key.startswith("SIPD_") or key in _FOREIGN_ENVIRONMENT:
            continue
        name = key.removeprefix("SIPD_").lower()
        if name not in SETTINGS or key != key.upper():
            wanted = ", ".join(f"SIPD_{each.upper()}" for each in SETTINGS)
            raise ConfigError(key, f"unknown setting in the environment, wanted one of {wanted}")
        found[name] = value
    return found


def _parse(name: str, value: object, source: str) -> object:
    """Returns the typed value of one setting; raises ConfigError naming the source."""
    metadata = _metadata(name)
    kind = metadata["kind"]
    bounds = {bound: metadata[bound] for bound in ("least", "most") if bound in metadata}
    try:
        return _one_of(value, kind) if isinstance(kind, tuple) else _PARSERS[kind](value, **bounds)
    except ValueError as error:
        raise ConfigError(name, f"from {source}: {error}") from error


def _one_of(value: object, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ValueError(f"found {value!r}, wanted one of {', '.join(choices)}")
    return str(value)


def _size(value: object, most: int | None = None) -> int:
    n_bytes = parse_size(str(value)) if isinstance(value, str) or type(value) is int else 0
    if n_bytes <= 0:
        raise ValueError(f"found {value!r}, wanted a size above 0 such as 512M, 1.5G or a number of bytes")
    if most is not None and n_bytes > most:
        raise ValueError(f"found {value!r}, wanted at most {format_size(most)}")
    return n_bytes


def _number(value: object, least: int = 1, most: int = _MOST) -> int:
    text = str(value) if isinstance(value, str) or type(value) is int else ""
    if not text.isascii() or not text.isdecimal() or not least <= int(text) <= most:
        wanted = f"of at least {least}" if most == _MOST else f"from {least} to {most}"
        raise ValueError(f"found {value!r}, wanted a whole number {wanted}")
    return int(text)


def _seconds(value: object) -> float:
    try:
        seconds = float(value) if isinstance(value, str | int | float) and type(value) is not bool else -1.0
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds <= 86400.0:
        raise ValueError(f"found {value!r}, wanted seconds from 0 to 86400")
    return seconds


def _switch(value: object) -> bool:
    words = {"1": True, "true": True, "on": True, "yes": True, "0": False, "false": False, "off": False, "no": False}
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or value.lower() not in words:
        raise ValueError(f"found {value!r}, wanted on or off")
    return words[value.lower()]


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"found {value!r}, wanted a text that is not empty")
    return value


def _name(value: object) -> str:
    text = _text(value)
    if sendable(text) != text:
        raise ValueError(f"found {text!r:.80}, which is not UTF-8 or too long; wanted a name that a message can hold")
    return text


def _path(value: object) -> Path:
    if isinstance(value, Path):
        return value
    text = _text(value)
    if "\0" in text:
        raise ValueError(f"found {text!r}, wanted a path without NUL")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ValueError(f"found {text!r}, wanted a path: {error}") from error


def _listen(value: object) -> tuple[ListenAddress, ...]:
    texts = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not texts:
        raise ValueError(f"found {value!r}, wanted unix:PATH or HOST:PORT, or a list of these")
    addresses = tuple(parse_listen_address(_text(text)) for text in texts)
    if len(set(addresses)) != len(addresses):
        raise ValueError(f"found {value!r}, wanted each address once")
    return addresses


_PARSERS: Mapping[str, Callable[..., object]] = {
    "path": _path,
    "name": _name,
    "listen": _listen,
    "size": _size,
    "count": _number,
    "seconds": _seconds,
    "switch": _switch,
}


def _check_together(config: Config) -> None:
    """Raises ConfigError for values that are sound alone but not together."""
    if (config.tls_cert is None) != (config.tls_key is None):
        missing, given = ("tls_key", "tls_cert") if config.tls_key is None else ("tls_cert", "tls_key")
        raise ConfigError(missing, f"not set, wanted beside {given}: a certificate needs its key")
    if config.tls_client_ca is not None and config.tls_cert is None:
        raise ConfigError("tls_cert", "not set, wanted beside tls_client_ca: client certificates need TLS")
    if config.token_file is None and config.tls_cert is None and not config.insecure_lan:
        for address in config.listen:
            if not address.is_local:
                raise ConfigError(
                    "listen",
                    f"{address} can be reached from the network and there is neither tls_cert nor token_file; wanted "
                    "one of these, a loopback address or unix:PATH, or insecure_lan",
                )
