"""Boots the board and runs an installation's life on it, with requests from here; exit code 0: every step passed.

    python tests/board/appliance.py --board-run COMMAND --deb FIRST --upgrade SECOND --model GGUF [--faults TINY_GGUF]

COMMAND boots a board, and knows --copy, --forward, --cpu, --mem, --read-bps, --timeout and `-- PROGRAM`. The steps
stand in appliance_board.sh and, with --faults, faults_board.sh; their whole output is printed.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sipd_client import Client, Finished, SipdClientError, Tls, Token

HERE = Path(__file__).parent
BOARD_PORT = 50051
BOOT = ("--cpu", "cortex-a72", "--mem", "1G", "--read-bps", "90M", "--timeout", "3000")
ASK_HOST = "@host generate "
MAX_TOKENS = 2  # emulated: seconds a token


def main() -> int:
    """Returns 0 when every step of every run passed."""
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))  # so that the board is ended too
    with tempfile.TemporaryDirectory() as folder:
        return _run_all(options, Path(folder))


def _run_all(options: argparse.Namespace, folder: Path) -> int:
    common = [f"{HERE}/board_steps.sh:/root/", f"{options.deb}:/root/first.deb", f"{options.model}:/root/model.gguf"]
    if not options.skip_life:
        # The client reaches the board as 127.0.0.1, one of the names that the certificate is for anyway.
        subprocess.run([sys.executable, "-m", "sipd", "cert", "init", "--dir", str(folder)], check=True)
        server = [f"{folder}/server.{kind}:/root/server.{kind}" for kind in ("crt", "key")]
        copies = [*common, *server, f"{options.upgrade}:/root/second.deb"]
        tls = Tls.from_files(ca=f"{folder}/ca.crt")
        if not _run(options, tls, "appliance_board.sh", copies, [str(options.requests)]):
            return 1
    if options.faults is None:
        return 0
    copies = [*common, f"{HERE}/stop_threads.py:/root/", f"{options.faults}:/root/tiny.gguf"]
    return 0 if _run(options, None, "faults_board.sh", copies, []) else 1


def _run(
    options: argparse.Namespace, tls: Tls | None, script: str, copies: Sequence[str], arguments: Sequence[str]
) -> bool:
    """Boots once and returns whether the script and every request passed."""
    port = _free_port()
    command = [*shlex.split(options.board_run), *BOOT, "--forward", f"{port}:{BOARD_PORT}"]
    for each in (f"{HERE}/{script}:/root/", *copies):
        command += ["--copy", each]
    command += ["--", "bash", f"/root/{script}", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as board:
        assert board.stdout is not None
        try:
            for line in board.stdout:
                print(line, end="", flush=True)
                if line.startswith(ASK_HOST):
                    n_requests, token = line.removeprefix(ASK_HOST).split()
                    _expect_refusal(port, tls)
                    _generate(port, tls, token, int(n_requests))
        except BaseException:
            os.killpg(board.pid, signal.SIGTERM)
            raise
        return board.wait() == 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _expect_refusal(port: int, tls: Tls | None) -> None:
    """Calls without a token; AssertionError when that is served."""
    with Client(f"127.0.0.1:{port}", tls=tls) as client:
        try:
            client.status()
            reason = "none: the call was served"
        except SipdClientError as error:
            reason = error.reason
    print(f"host: without a token: {reason}", flush=True)
    assert reason == "TOKEN_REJECTED"


def _generate(port: int, tls: Tls | None, token: str, n_requests: int) -> None:
    """Sends requests one after the other over the network; raises SipdClientError when one fails."""
    with Client(f"127.0.0.1:{port}", token=token, tls=tls) as client:
        for number in range(n_requests):
            text = ""
            finished: Finished | None = None
            for event in client.generate(f"{number} birds", max_tokens=MAX_TOKENS, ignore_end_tokens=True):
                if isinstance(event, Token):
                    text += event.text
                elif isinstance(event, Finished):
                    finished = event
            assert finished is not None, "the stream ended without its last event"
            print(f"host: request {number}: {text!r}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--board-run", default=os.environ.get("SIPD_BOARD_RUN"), required="SIPD_BOARD_RUN" not in os.environ
    )
    parser.add_argument("--deb", type=Path, required=True)
    parser.add_argument("--upgrade", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--faults", type=Path, help="a tiny model for the faults, which are run when it is given")
    parser.add_argument("--skip-life", action="store_true", help="the faults only")
    return parser


if __name__ == "__main__":
    sys.exit(main())
