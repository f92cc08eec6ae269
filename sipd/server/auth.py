"""Bearer tokens: who may call. Tokens are kept hashed and compared in constant time.

Health stays open, so that load balancers and service managers need no secret; everything else needs a token.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc

from sipd.errors import ConfigError, Unauthenticated
from sipd.server.failure import describe

_LOG = logging.getLogger("sipd.auth")
_OPEN_PREFIX = "/grpc.health.v1.Health/"
_MIN_TOKEN_CHARS = 16  # shorter secrets can be guessed over a LAN in days


class TokenFile:
    """The tokens that are accepted; `reload` replaces them at once. Owned by the event loop's thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digests = _read_tokens(path)

    def reload(self) -> None:
        """Reads the file again; raises ConfigError and keeps the old tokens when it cannot be used."""
        self._digests = _read_tokens(self._path)

    def accepts(self, authorization: str) -> str | None:
        """Returns the name of the token in an `authorization` value, or None; time does not tell which one failed."""
        scheme, _, token = authorization.partition(" ")
        digest = _digest(token.strip())
        name = None
        for each, known in self._digests:
            if hmac.compare_digest(digest, known) and scheme.lower() == "bearer":
                name = each
        return name


class TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc, unused-ignore]
    """Refuses calls without a good token before their message is read."""

    def __init__(self, tokens: TokenFile) -> None:
        self._tokens = tokens

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Returns the method's handler, or one that ends the call with UNAUTHENTICATED."""
        if handler_call_details.method.startswith(_OPEN_PREFIX):
            return await continuation(handler_call_details)
        given = _authorization(handler_call_details.invocation_metadata or ())
        if given is not None and self._tokens.accepts(given) is not None:
            return await continuation(handler_call_details)
        problem = "no bearer token" if given is None else "unknown bearer token"
        return _refusal(Unauthenticated(f"{problem}, wanted metadata 'authorization: Bearer TOKEN'"))


def _refusal(error: Unauthenticated) -> grpc.RpcMethodHandler[Any, Any]:
    async def refuse(_messages: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        failure = describe(error)
        await context.abort(failure.code, failure.message, failure.trailing_metadata)

    # Streaming both ways: the only kind whose handler runs before any message is received.
    return grpc.stream_stream_rpc_method_handler(refuse)


def _authorization(metadata: Sequence[Any]) -> str | None:
    values = [value for key, value in metadata if key == "authorization"]
    return values[0] if len(values) == 1 and isinstance(values[0], str) else None


def _read_tokens(path: Path) -> tuple[tuple[str, bytes], ...]:
    """Returns (name, digest) of each line `TOKEN` or `NAME:TOKEN`; blank lines and # lines are skipped."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        is_open = path.stat().st_mode & 0o007
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("token_file", f"{path}: {error}") from error
    if is_open:
        _LOG.warning("%s can be read by every user, wanted mode 0600 or 0640", path)
    tokens: list[tuple[str, bytes]] = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, colon, token = text.rpartition(":")
        if len(token) < _MIN_TOKEN_CHARS:
            raise ConfigError(
                "token_file", f"{path}: line {number}: token has {len(token)} characters, wanted {_MIN_TOKEN_CHARS}"
            )
        tokens.append((name if colon else f"line {number}", _digest(token)))
    if not tokens:
        raise ConfigError("token_file", f"{path}: holds no token, wanted one NAME:TOKEN or TOKEN a line")
    return tuple(tokens)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
