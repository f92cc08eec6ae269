"""`sipd token new`: makes a bearer token and the line that lets it in.

Invariant: the secret goes to standard output once and is stored nowhere; a token file is replaced whole or not at all.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sipd.errors import ConfigError
from sipd.plain_file import read_plain_file
from sipd.private_file import replace_private
from sipd.server.tokens import new_token, parse_token_lines, token_line


def run_token_new(name: str, file: Path | None) -> int:
    """Prints a new token, and its line on standard error or into `file`; returns the exit code."""
    token = new_token()
    try:
        line = token_line(name, token)
    except ValueError as error:
        raise ConfigError("token", str(error)) from error
    if file is None:
        print(f"the line for token_file, which holds no secret:\n{line}\nthe token, for the client:", file=sys.stderr)
    else:
        n_named = _append(file, name, line)
        print(f"added {name} to {file}; a running daemon takes it at a reload (SIGHUP)", file=sys.stderr)
        if n_named > 1:
            print(
                f"{name} has {n_named} tokens there: take out the old line when its clients are done", file=sys.stderr
            )
    print(token)
    return 0


def _append(file: Path, name: str, line: str) -> int:
    """Returns how many tokens `name` has then; raises ConfigError for a file that cannot be read or written."""
    try:
        before = read_plain_file(file).decode() if os.path.lexists(file) else ""
        text = before + ("\n" if before and not before.endswith("\n") else "") + line + "\n"
        tokens = parse_token_lines(text)
        replace_private(file.resolve(), text.encode())
    except (OSError, ValueError) as error:
        raise ConfigError("token_file", f"{file}: {error}") from error
    return sum(token.name == name for token in tokens)
