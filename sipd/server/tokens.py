"""Bearer tokens as lines of a file: `NAME:sha256:DIGEST`, and how a new one is made.

SHA-256 and no slow password hash: a token made here holds 256 random bits, which no list of guesses contains, while a
slow hash would let callers without a token cost the board memory and time. Plain tokens are read too, with a warning.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass

TOKEN_BYTES = 32
MAX_NAME_CHARS = 48
_MIN_PLAIN_CHARS = 16  # shorter secrets can be guessed over a LAN in days
_SCHEME = "sha256"
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True)
class Token:
    """One token that is accepted."""

    name: str
    digest: bytes
    is_plain: bool  # the file holds the secret itself


def new_token() -> str:
    """Returns a new secret, 43 characters that no shell or header needs quoted."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def token_digest(token: str) -> bytes:
    """Returns what is kept of a secret."""
    return hashlib.sha256(token.encode()).digest()


def token_line(name: str, token: str) -> str:
    """Returns the line that lets `token` in as `name`; raises ValueError for a name that a line cannot hold."""
    return f"{_checked_name(name)}:{_SCHEME}:{token_digest(token).hex()}"


def parse_token_lines(text: str) -> tuple[Token, ...]:
    """Returns the tokens of a file's text; blank lines and # lines are skipped. Raises ValueError naming the line."""
    tokens: list[Token] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.strip().startswith("#"):
            continue
        try:
            tokens.append(_parse_line(line.strip(), f"line {number}"))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
    if not tokens:
        raise ValueError("holds no token, wanted lines NAME:sha256:DIGEST as `sipd token new NAME` prints them")
    return tuple(tokens)


def _parse_line(line: str, default_name: str) -> Token:
    """Messages never show the line: it may be a secret."""
    head, _, secret = line.rpartition(":")
    name, _, scheme = head.rpartition(":")
    if scheme == _SCHEME:
        if _DIGEST.fullmatch(secret) is None:
            raise ValueError(f"the digest has {len(secret)} characters, wanted 64 hexadecimal digits")
        return Token(_checked_name(name or default_name), bytes.fromhex(secret), is_plain=False)
    if len(secret) < _MIN_PLAIN_CHARS:
        raise ValueError(f"token has {len(secret)} characters, wanted {_MIN_PLAIN_CHARS}")
    return Token(_checked_name(head or default_name), token_digest(secret), is_plain=True)


def _checked_name(name: str) -> str:
    if not name or len(name) > MAX_NAME_CHARS or not name.isprintable() or ":" in name or name.startswith("#"):
        shown = name if name.isprintable() and len(name) <= MAX_NAME_CHARS else f"{len(name)} characters"
        raise ValueError(f"name {shown!r}, wanted 1 to {MAX_NAME_CHARS} printable characters without a colon")
    return name
