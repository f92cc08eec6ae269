"""Bearer tokens: who may call. Tokens are kept hashed and compared in constant time.

Health stays open, so that load balancers and service managers need no secret; everything else needs a token.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc

from sipd.errors import ConfigError, Unauthenticated
from sipd.plain_file import read_plain_file
from sipd.server.client_identity import remember_token_name
from sipd.server.refusal import refusal
from sipd.server.refusals import Refusals
from sipd.server.tokens import Token, parse_token_lines, token_digest

_LOG = logging.getLogger("sipd.auth")
_OPEN_PREFIX = "/grpc.health.v1.Health/"


class TokenFile:
    """The tokens that are accepted; `reload` replaces them at once. Owned by the event loop's thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tokens = _read_tokens(path)

    def reload(self) -> str:
        """Reads the file again, returns what it holds; raises ConfigError and keeps the old tokens otherwise."""
        self._tokens = _read_tokens(self._path)
        return f"{len(self._tokens)} tokens of {self._path}"

    def accepts(self, authorization: str) -> str | None:
        """Returns the name of the token in an `authorization` value, or None; time does not tell which one failed."""
        scheme, _, token = authorization.partition(" ")
        digest = token_digest(token.strip())
        name = None
        for known in self._tokens:
            if hmac.compare_digest(digest, known.digest) and scheme.lower() == "bearer":
                name = known.name
        return name


class TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc, unused-ignore]
    """Refuses calls without a good token before their message is read, and names the good one to the call's handler."""

    def __init__(self, tokens: TokenFile, refusals: Refusals) -> None:
        self._tokens = tokens
        self._refusals = refusals

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Returns the method's handler, or one that ends the call with UNAUTHENTICATED."""
        if handler_call_details.method.startswith(_OPEN_PREFIX):
            return await continuation(handler_call_details)
        given = _authorizations(handler_call_details.invocation_metadata or ())
        name = self._tokens.accepts(given[0]) if len(given) == 1 else None
        if name is not None:
            remember_token_name(name)
            return await continuation(handler_call_details)
        problem = "unknown bearer token" if given else "no bearer token"
        if len(given) > 1:
            problem = f"{len(given)} authorization values"
        return refusal(Unauthenticated(f"{problem}, wanted metadata 'authorization: Bearer TOKEN'"), self._refusals)


def _authorizations(metadata: Sequence[Any]) -> list[str]:
    return [value for key, value in metadata if key == "authorization" and isinstance(value, str)]


def _read_tokens(path: Path) -> tuple[Token, ...]:
    try:
        text = read_plain_file(path).decode()
        is_open = path.stat().st_mode & 0o007
        tokens = parse_token_lines(text)
    except UnicodeDecodeError as error:
        raise ConfigError("token_file", f"{path}: found bytes that are no UTF-8 at byte {error.start}") from error
    except (OSError, ValueError) as error:
        raise ConfigError("token_file", f"{path}: {error}") from error
    if is_open:
        _LOG.warning("%s can be read by every user, wanted mode 0600 or 0640", path)
    if plain := [token.name for token in tokens if token.is_plain]:
        _LOG.warning("%s holds tokens in plain text: %s; `sipd token new` makes hashed ones", path, ", ".join(plain))
    return tokens
