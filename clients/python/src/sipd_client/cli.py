"""The command sipc: text on standard output, everything else on standard error.

Exit codes: 0 the call was served, 1 it failed (one line on standard error: status, reason, message) or standard output
cannot be written, 2 wrong usage, 130 interrupted, 141 the reader of standard output went away. Interrupting cancels the
request.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

from sipd_client.client import Client
from sipd_client.connection import DEFAULT_TARGET, IDLE_TIMEOUT_S, Tls
from sipd_client.errors import SipdClientError
from sipd_client.events import Event, event_to_dict, to_dict
from sipd_client.interrupt import EXIT_INTERRUPTED, ends_on_interrupt
from sipd_client.report import finished_lines, model_lines, progress_line, status_lines
from sipd_client.requests import GenerateOptions
from sipd_client.v1.generation_pb2 import Finished, Progress, Token

EXIT_FAILED, EXIT_USAGE, EXIT_PIPE = 1, 2, 141
_CLEAR_LINE = "\r\x1b[K"


class UsageError(Exception):
    """The command line, or what it names, cannot be used."""


class OutputError(Exception):
    """Standard output cannot be written."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    options = _parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    try:
        with ends_on_interrupt():
            return _run(options)
    except SipdClientError as error:
        wait = "" if error.retry_after_s is None else f" (try again in {error.retry_after_s:g} s)"
        _complain(f"{error}{wait}")
        return EXIT_FAILED
    except OutputError as error:
        _complain(str(error))
        return EXIT_FAILED
    except BrokenPipeError:
        return EXIT_PIPE
    except (UsageError, OSError, ValueError, TypeError) as error:
        _complain(str(error))
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _complain(text: str) -> None:
    if sys.stderr is not None:  # print would take standard output instead
        print(f"sipc: {text}", file=sys.stderr)


def _write(text: str, end: str = "\n") -> None:
    """Writes to standard output at once; raises OutputError, or BrokenPipeError when its reader went away."""
    try:
        print(text, end=end, flush=True)
    except OSError as error:
        # The interpreter flushes at exit: let it flush into nothing instead of complaining.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise OutputError(f"standard output: {error.strerror}") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sipc", description="Talks to sipd.", epilog=_epilog())
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    generate = commands.add_parser("generate", help="stream text", epilog=_epilog())
    status = commands.add_parser("status", help="show how the daemon is doing", epilog=_epilog())
    model = commands.add_parser("model", help="show what the daemon serves", epilog=_epilog())
    for command in (generate, status, model):
        _add_connection(command)
    _add_generation(generate)
    status.add_argument("--json", action="store_true", help="one JSON object: GetStatusResponse")
    model.add_argument("--json", action="store_true", help="one JSON object: Model")
    model.add_argument("name", nargs="?", help="name of the model (default: the one that is served)")
    return parser


def _epilog() -> str:
    return "Exit codes: 0 served, 1 failed (status, reason and message on standard error), 2 usage, 130 interrupted."


def _add_connection(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--target",
        default=os.environ.get("SIPD_TARGET") or DEFAULT_TARGET,
        help="unix:PATH or HOST:PORT (default: $SIPD_TARGET or %(default)s)",
    )
    command.add_argument("--token-file", metavar="FILE", help="file that holds the bearer token")
    command.add_argument("--tls", action="store_true", help="encrypt; implied by --ca and --cert")
    command.add_argument("--ca", metavar="FILE", help="PEM certificates that sign the daemon's")
    command.add_argument("--cert", metavar="FILE", help="PEM client certificate; needs --key")
    command.add_argument("--key", metavar="FILE", help="PEM key of the client certificate")
    command.add_argument(
        "--idle-timeout",
        type=float,
        default=IDLE_TIMEOUT_S,
        metavar="SECONDS",
        help="give up after this long without any event; 0: never (default: %(default)g)",
    )


def _add_generation(command: argparse.ArgumentParser) -> None:
    command.add_argument("prompt", metavar="PROMPT", help="text to continue; - reads standard input")
    command.add_argument("--chat", action="store_true", help="PROMPT is a user's message; the reply is streamed")
    command.add_argument("--system", metavar="TEXT", help="system message before it; implies --chat")
    command.add_argument("--token-ids", action="store_true", help="PROMPT is token ids, separated by spaces or commas")
    command.add_argument("--json", action="store_true", help="one JSON object per event and line")
    for flag, kind, text in (
        ("--max-tokens", int, "most tokens to generate, never more than the context leaves (default: 256)"),
        ("--temperature", float, "0: the likeliest token always (default)"),
        ("--top-k", int, "keep the K likeliest tokens (default: 0, off)"),
        ("--top-p", float, "keep the likeliest tokens of this joint probability (default: 1, off)"),
        ("--min-p", float, "drop tokens below this share of the likeliest (default: 0, off)"),
        ("--repetition-penalty", float, "above 1: less repetition (default: 1, off)"),
        ("--presence-penalty", float, "taken once from a token that was there (default: 0)"),
        ("--frequency-penalty", float, "taken per occurrence of a token (default: 0)"),
        ("--seed", int, "same seed, same text (default: the daemon draws one)"),
        ("--logprobs", int, "report log probabilities and N alternatives (with --json)"),
        ("--model", str, "name of the model (default: the one that is served)"),
        ("--request-id", str, "name of this request in the daemon's journal"),
        ("--session", str, "name under which the daemon keeps what it computed for the next turn"),
    ):
        command.add_argument(flag, type=kind, help=text, metavar=kind.__name__.upper())
    command.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end at TEXT; may be repeated")
    command.add_argument(
        "--priority",
        choices=("interactive", "background"),
        help="background: after all who wait for their text (default: interactive)",
    )
    command.add_argument("--no-prefix-cache", action="store_true", help="take and leave nothing of the prompt cache")
    command.add_argument("--no-speculation", action="store_true", help="one token a pass, none guessed")
    command.add_argument("--stats", action="store_true", help="tell the cost on standard error at the end")
    command.add_argument("--special-tokens", action="store_true", help="control tokens may be written in PROMPT")
    command.add_argument(
        "--deadline", type=float, metavar="SECONDS", help="give up after this long (default: no limit)"
    )


def _run(options: argparse.Namespace) -> int:
    if sys.stdout is None:
        raise OutputError("standard output is closed")
    with _client(options) as client:
        if options.command == "status":
            status = client.status()
            _print_result([_json(to_dict(status))] if options.json else status_lines(status))
        elif options.command == "model":
            model = client.model(options.name)
            _print_result([_json(to_dict(model))] if options.json else model_lines(model))
        else:
            events = _events(client, options)
            try:
                finished = (_print_events if options.json else _print_text)(events)
            finally:
                events.close()
            if options.stats and finished is not None and sys.stderr is not None:
                print("\n".join(finished_lines(finished)), file=sys.stderr)
    return 0


def _client(options: argparse.Namespace) -> Client:
    token = None
    if options.token_file:
        token = Path(options.token_file).read_text(encoding="utf-8").strip()
    tls = None
    if options.tls or options.ca or options.cert:
        tls = Tls.from_files(options.ca, options.cert, options.key)
    return Client(options.target, token=token, tls=tls, idle_timeout_s=options.idle_timeout or None)


def _events(client: Client, options: argparse.Namespace) -> Generator[Event, None, None]:
    asked = GenerateOptions(
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        repetition_penalty=options.repetition_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        seed=options.seed,
        logprobs=options.logprobs,
        model=options.model,
        request_id=options.request_id,
        stop=options.stop,
        priority=options.priority,
        session=options.session,
    )
    if options.no_prefix_cache:
        asked["prefix_cache"] = False
    if options.no_speculation:
        asked["speculation"] = False
    if options.special_tokens:
        asked["parse_special_tokens"] = True
    prompt = _read_standard_input() if options.prompt == "-" else options.prompt
    if options.token_ids:
        return client.generate(
            [int(word) for word in prompt.replace(",", " ").split()], deadline_s=options.deadline, **asked
        )
    if options.chat or options.system is not None:
        messages = [] if options.system is None else [("system", options.system)]
        return client.chat([*messages, ("user", prompt)], deadline_s=options.deadline, **asked)
    return client.generate(prompt, deadline_s=options.deadline, **asked)


def _read_standard_input() -> str:
    if sys.stdin is None:
        raise UsageError("standard input is closed, wanted a prompt there")
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"prompt: byte {error.start} of standard input is no UTF-8") from error


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(", ", ": "))


def _print_result(lines: Sequence[str]) -> None:
    _write("\n".join(lines))


def _print_events(events: Iterator[Event]) -> Finished | None:
    """Writes one line per event; returns the last one."""
    finished = None
    for event in events:
        _write(_json(event_to_dict(event)))
        if isinstance(event, Finished):
            finished = event
    return finished


def _print_text(events: Iterator[Event]) -> Finished | None:
    """Writes the text as it comes, exactly; on a terminal also the progress before it and a closing line end.

    Returns the last event.
    """
    finished = None
    shows_progress = sys.stderr is not None and sys.stderr.isatty()
    is_shown = False
    text = ""
    try:
        for event in events:
            if isinstance(event, Progress) and shows_progress and not text:
                print(_CLEAR_LINE + progress_line(event), end="", file=sys.stderr, flush=True)
                is_shown = True
            elif isinstance(event, Token) and event.text:
                if is_shown:
                    print(_CLEAR_LINE, end="", file=sys.stderr, flush=True)
                    is_shown = False
                text = event.text
                _write(text, end="")
            elif isinstance(event, Finished):
                finished = event
    finally:
        if is_shown:
            print(_CLEAR_LINE, end="", file=sys.stderr, flush=True)
        if text and not text.endswith("\n") and sys.stdout.isatty():
            _write("")
    return finished


if __name__ == "__main__":
    sys.exit(main())
