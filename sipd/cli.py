"""The `sipd` command: argument parsing and wiring; nothing else.

Invariant: whatever goes wrong, the one-line reason is the last line on stderr and the exit code is the error's own
(78 for configuration, model and budget, so that systemd does not restart-loop them; 74 for output that is full).
"""

from __future__ import annotations

import argparse
import errno
import io
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import sipd
from sipd.config import SETTINGS, Config, default_models_dir, load_config, read_systemd_environment, setting_help
from sipd.errors import EX_SOFTWARE, ConfigError, SipdError
from sipd.foreign_text import printable
from sipd.process_memory import keep_heap_small

_EX_USAGE, _EX_IOERR = 64, 74
_INTERRUPTED = 130  # 128 + SIGINT, as shells do
_CERTIFICATE_DAYS = 825  # the longest that common TLS stacks take from an authority of one's own
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_ENGINE_SETTINGS: tuple[str, ...] = (
    *("budget", "context", "threads", "max_requests", "rows_per_pass", "direct_io"),
    *("isa", "tile_bytes", "ring_slots", "readers", "pin"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand; returns the exit code."""
    arguments = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file name need not be Unicode
    try:
        return _with_flush(run, arguments)
    except SipdError as error:
        _print_error(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # `sipd plan … | head`
        _drop_output()
        return 0
    except Exception as error:
        if run is not _serve and isinstance(error, OSError) and error.errno in _DISK_FULL and error.filename is None:
            _drop_output()
            _print_error(f"cannot write the output: {error.strerror}")
            return _EX_IOERR
        logging.getLogger("sipd").exception("internal fault")
        _print_error(f"internal fault: {type(error).__name__}: {error}")
        return EX_SOFTWARE


def _serve(arguments: argparse.Namespace) -> int:
    # Until the daemon takes it: nothing is read yet that could be read again, and imports take seconds on a board.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    config = _config(arguments, SETTINGS)
    if config.model is None:
        raise ConfigError("model", "not set, wanted --model PATH, SIPD_MODEL or a line in the configuration file")

    keep_heap_small()
    import asyncio  # noqa: PLC0415 - 4 MB that plan, inspect and version need not pay

    from sipd.server.daemon import run_daemon  # noqa: PLC0415 - imports grpc
    from sipd.server.log_lines import set_up_logging, stderr_id  # noqa: PLC0415
    from sipd.server.model_loader import load_model  # noqa: PLC0415

    environment = read_systemd_environment(os.environ, os.getpid(), stderr_id())
    set_up_logging(config.log_level, has_journal_stderr=environment.has_journal_stderr)
    return asyncio.run(run_daemon(config, environment, load_model))


def _plan(arguments: argparse.Namespace) -> int:
    from sipd.plan_report import run_plan  # noqa: PLC0415

    code: int = run_plan(_config(arguments, _ENGINE_SETTINGS), as_json=arguments.json)
    return code


def _bench(arguments: argparse.Namespace) -> int:
    if arguments.sweep is not None:
        return _sweep(arguments)

    from sipd.bench import run_bench  # noqa: PLC0415

    code: int = run_bench(
        _config(arguments, _ENGINE_SETTINGS),
        prompt_tokens=arguments.prompt_tokens,
        tokens=arguments.tokens,
        clients=arguments.clients,
        as_json=arguments.json,
    )
    return code


def _sweep(arguments: argparse.Namespace) -> int:
    from sipd.bench_sweep import run_sweep  # noqa: PLC0415

    return run_sweep(
        _config(arguments, _ENGINE_SETTINGS),
        Path(arguments.sweep),
        prompt_tokens=arguments.prompt_tokens,
        tokens=arguments.tokens,
        clients=arguments.clients,
    )


def _inspect(arguments: argparse.Namespace) -> int:
    from sipd.inspect import run_inspect  # noqa: PLC0415

    code: int = run_inspect(Path(arguments.model), as_json=arguments.json)
    return code


def _pull(arguments: argparse.Namespace) -> int:
    from sipd.pull import run_pull  # noqa: PLC0415

    folder = Path(arguments.to) if arguments.to else default_models_dir(os.environ)
    return run_pull(arguments.source, folder, sha256=arguments.sha256)


def _cert_init(arguments: argparse.Namespace) -> int:
    from sipd.cert import run_cert_init  # noqa: PLC0415

    return run_cert_init(Path(arguments.dir), arguments.name, renew=arguments.renew, days=arguments.days)


def _cert_client(arguments: argparse.Namespace) -> int:
    from sipd.cert import run_cert_client  # noqa: PLC0415

    return run_cert_client(Path(arguments.dir), arguments.name, days=arguments.days)


def _token_new(arguments: argparse.Namespace) -> int:
    from sipd.token_new import run_token_new  # noqa: PLC0415

    return run_token_new(arguments.name, Path(arguments.file) if arguments.file else None)


def _doctor(arguments: argparse.Namespace) -> int:
    from sipd.doctor.report import run_doctor  # noqa: PLC0415

    return run_doctor(_config(arguments, (*_ENGINE_SETTINGS, "snapshot_dir")), as_json=arguments.json)


def _version(_arguments: argparse.Namespace) -> int:
    print(f"sipd {sipd.__version__}")
    return 0


def _config(arguments: argparse.Namespace, names: Sequence[str]) -> Config:
    """Returns the settings, flags on top."""
    flags = {name: getattr(arguments, name, None) for name in (*names, "model")}
    return load_config(flags, os.environ, Path(arguments.config) if arguments.config else None)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="sipd", description=sipd.__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)

    serve = _command(commands, "serve", _serve, "run the daemon")
    _add_settings(serve, SETTINGS)

    plan = _command(commands, "plan", _plan, "print the memory ledger and the bytes per pass without starting")
    _add_model(plan)

    bench = _command(commands, "bench", _bench, "measure storage, prefill and decode")
    _add_model(bench)
    bench.add_argument("--prompt-tokens", type=_positive, default=128, metavar="N", help="prompt tokens (default: 128)")
    bench.add_argument("--tokens", type=_positive, default=32, metavar="N", help="tokens to generate (default: 32)")
    bench.add_argument("--clients", type=_positive, default=1, metavar="N", help="requests at a time (default: 1)")
    bench.add_argument("--sweep", metavar="OUT", help="measure over budgets and write OUT.svg and OUT.csv")

    inspect = _command(commands, "inspect", _inspect, "print a model's metadata and tensors")
    inspect.add_argument("model", metavar="MODEL", help="GGUF file or checkpoint directory")
    inspect.add_argument("--json", action="store_true", help="print JSON")

    pull = _command(commands, "pull", _pull, "download the default model, or any https file")
    pull.add_argument("source", nargs="?", metavar="NAME|URL", help="default: smollm2")
    pull.add_argument("--to", metavar="DIR", help="folder to fill (default: the cache folder of sipd)")
    pull.add_argument("--sha256", metavar="HEX", help="digest that the file must have")

    doctor = _command(commands, "doctor", _doctor, "say what is wrong with this machine, and what to do")
    doctor.add_argument("model", nargs="?", metavar="MODEL", help="GGUF file or checkpoint directory")
    _add_settings(doctor, (*_ENGINE_SETTINGS, "snapshot_dir"))
    doctor.add_argument("--json", action="store_true", help="print JSON")

    _add_security(commands)
    _command(commands, "version", _version, "print the version")
    return parser


class _Parser(argparse.ArgumentParser):
    """Refuses unknown flags with EX_USAGE and the reason on the last line."""

    def error(self, message: str) -> None:  # type: ignore[override] # exits, as its super does
        self.print_usage(sys.stderr)
        _print_error(message)
        raise SystemExit(_EX_USAGE)


def _command(
    commands: argparse._SubParsersAction[_Parser],
    name: str,
    run: Callable[[argparse.Namespace], int],
    text: str,
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
    parser.set_defaults(run=run)
    return parser


def _add_security(commands: argparse._SubParsersAction[_Parser]) -> None:
    """Adds `cert init`, `cert client` and `token new`."""
    cert = _group(commands, "cert", "make certificates of your own for TLS (needs the program openssl)")
    init = _command(cert, "init", _cert_init, "make an authority and the server's certificate")
    init.add_argument("--name", action="append", default=[], metavar="NAME", help="one more name or IP address of it")
    init.add_argument("--renew", action="store_true", help="replace the server's certificate, keep its key")
    client = _command(cert, "client", _cert_client, "make a client's certificate (for tls_client_ca)")
    client.add_argument("name", metavar="NAME", help="whose it is; stands in the journal")
    for each in (init, client):
        each.add_argument("--dir", default="/etc/sipd/tls", metavar="DIR", help="folder (default: /etc/sipd/tls)")
        each.add_argument(
            "--days", type=_positive, default=_CERTIFICATE_DAYS, metavar="N", help="validity (default: 825)"
        )
    token = _group(commands, "token", "make bearer tokens")
    new = _command(token, "new", _token_new, "print a new token and its line for token_file")
    new.add_argument("name", metavar="NAME", help="whose it is; stands in the journal")
    new.add_argument("--file", metavar="FILE", help="token_file to add the line to")


def _group(commands: argparse._SubParsersAction[_Parser], name: str, text: str) -> argparse._SubParsersAction[_Parser]:
    parser = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
    return parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)


def _add_model(parser: argparse.ArgumentParser) -> None:
    """Adds MODEL, the engine's settings and --json."""
    parser.add_argument("model", metavar="MODEL", help="GGUF file or checkpoint directory")
    _add_settings(parser, _ENGINE_SETTINGS)
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_settings(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """Adds one flag per setting; values stay text, config.py parses them."""
    parser.add_argument("--config", metavar="FILE", help="TOML file (default: /etc/sipd/sipd.toml where it exists)")
    for name in names:
        flag = f"--{name.replace('_', '-')}"
        if name == "listen":
            parser.add_argument(flag, action="append", metavar="ADDRESS", help=setting_help(name))
        elif name in ("insecure_lan", "pin", "prefix_cache", "speculation"):
            parser.add_argument(flag, nargs="?", const="on", metavar="on|off", help=setting_help(name))
        else:
            parser.add_argument(flag, metavar=_metavar(name), help=setting_help(name))


def _metavar(name: str) -> str:
    if name in ("budget", "tile_bytes", "max_prompt_bytes", "snapshot_bytes"):
        return "SIZE"
    if name in ("model", "token_file", "tls_cert", "tls_key", "tls_client_ca", "snapshot_dir", "draft_model"):
        return "PATH"
    return "NAME" if name in ("isa", "direct_io", "log_level", "model_name") else "N"


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted a whole number of at least 1")
    return int(text)


def _with_flush(run: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    """Returns the exit code; raises OSError for output that cannot be written, which would else be found at exit."""
    try:
        return run(arguments)
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()


def _drop_output() -> None:
    """Has the interpreter's flush at exit go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_error(text: str) -> None:
    if sys.stderr is not None:  # print would take standard output instead
        print(f"sipd: {printable(' '.join(text.split()))}", file=sys.stderr)
