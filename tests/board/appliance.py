"""Boots the board and runs an installation's life on it, with requests from here; exit code 0: every step passed.

    python tests/board/appliance.py --board-run COMMAND --deb FIRST --upgrade SECOND --model GGUF [--faults TINY_GGUF]

COMMAND boots a board, and knows --copy, --forward, --cpu, --pages, --mem, --read-bps, --timeout and `-- PROGRAM`. The
files of --copy reach it as a tar on its second disk, /dev/vdb. The steps stand in appliance_board.sh and, with
--faults, faults_board.sh, storage_board.sh (wants udev on the board) and machine_board.sh (wants avahi-daemon and
avahi-utils); their whole output is printed. --only takes some of these boots.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from sipd_client import Client, Finished, SipdClientError, Tls, Token

HERE = Path(__file__).parent
BOARD_PORT = 50051
BOOT = ("--mem", "1G", "--read-bps", "90M", "--timeout", "3000")
CPUS = {"4k": "cortex-a72", "16k": "cortex-a76"}  # by the kernel's pages: a Pi 4, and a Pi 5 as its system boots
ASK_HOST = "@host generate "
MAX_TOKENS = 2  # emulated: seconds a token
BOOTS = ("life", "faults", "storage", "machine")
MIB, DISK_SPARE_MIB = 1 << 20, 24


def main() -> int:
    """Returns 0 when every step of every run passed."""
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))  # so that the board is ended too
    with tempfile.TemporaryDirectory() as folder:
        return _run_all(options, Path(folder))


def _run_all(options: argparse.Namespace, folder: Path) -> int:
    common = [f"{HERE}/board_steps.sh:/root/", f"{options.deb}:/root/first.deb"]
    model = f"{options.model}:/root/model.gguf"
    if "life" in options.only:
        # The client reaches the board as 127.0.0.1, one of the names that the certificate is for anyway.
        subprocess.run([sys.executable, "-m", "sipd", "cert", "init", "--dir", str(folder)], check=True)
        server = [f"{folder}/server.{kind}:/root/server.{kind}" for kind in ("crt", "key")]
        copies = [*common, model, *server, f"{options.upgrade}:/root/second.deb"]
        tls = Tls.from_files(ca=f"{folder}/ca.crt")
        if not _run(options, tls, "appliance_board.sh", copies, [str(options.requests)]):
            return 1
    if options.faults is None:
        return 0
    tiny = f"{options.faults}:/root/tiny.gguf"
    faults: dict[str, Callable[[], list[str]]] = {
        "faults": lambda: [model, tiny, f"{HERE}/stop_threads.py:/root/"],
        "storage": lambda: [tiny, f"{HERE}/partition.py:/root/", f"{_make_disk(folder, options.model)}:/root/disk.img"],
        "machine": lambda: [model],
    }
    chosen = {name: copies for name, copies in faults.items() if name in options.only}
    passed = (_run(options, None, f"{name}_board.sh", [*common, *copies()], []) for name, copies in chosen.items())
    return 0 if all(passed) else 1


def _make_disk(folder: Path, model: Path) -> Path:
    """Returns an image of a disk that holds the model; needs e2fsprogs."""
    tree, image = folder / "tree", folder / "disk.img"
    tree.mkdir()
    shutil.copyfile(model, tree / "model.gguf")
    mebibytes = model.stat().st_size // MIB + DISK_SPARE_MIB
    kind = ["-q", "-t", "ext4", "-O", "^has_journal", "-L", "models"]
    subprocess.run(["mke2fs", *kind, "-d", str(tree), str(image), f"{mebibytes}M"], check=True)
    return image


def _run(
    options: argparse.Namespace, tls: Tls | None, script: str, copies: Sequence[str], arguments: Sequence[str]
) -> bool:
    """Boots once and returns whether the script and every request passed."""
    port = _free_port()
    command = [*shlex.split(options.board_run), *BOOT, "--forward", f"{port}:{BOARD_PORT}"]
    command += ["--cpu", CPUS[options.pages], "--pages", options.pages]
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
    parser.add_argument("--pages", choices=tuple(CPUS), default="4k", help="of the kernel (default: 4k)")
    parser.add_argument("--only", nargs="+", choices=BOOTS, default=BOOTS, help="these boots (default: all)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
