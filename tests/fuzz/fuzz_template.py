"""Fuzz target: a chat template from a model file, and message content from a client.

Invariant: a template is rendered or refused within bounds; content never becomes a control token.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache

from sipd.text.chat_template import ChatMessage, ChatTemplate
from sipd.text.special_tokens import SpecialTokens
from sipd.text.vocabulary import SpecialToken, TokenType
from tests.fuzz.bounds import SEPARATOR, bounded
from tests.vocabularies import CHAT_TEMPLATE

TOKENS = {"<|im_start|>": TokenType.CONTROL, "<|im_end|>": TokenType.CONTROL, "<think>": TokenType.USER_DEFINED}
SPECIAL = SpecialTokens([SpecialToken(index, *entry) for index, entry in enumerate(TOKENS.items())])
DICTIONARY = (
    SEPARATOR, b"{{ ", b" }}", b"{% for m in messages %}", b"{% endfor %}", b"{% set x = ", b" %}", b"| tojson",
    b"|join", b"|center(", b"|indent(", b".__class__", b".format(", b"*99999", b"range(999999)", b"raise_exception(",
    b"strftime_now(", b"namespace(", b"{% macro m(a) %}", b"{% endmacro %}", b"loop.index", b"<|im_end|>",
    b"\xef\xb7\x90", b"|format(", b"'%99999999d' % 1", b".ljust(", b"|batch(", b"|tojson(indent=",
)  # fmt: skip


def TestOneInput(data: bytes) -> None:  # noqa: N802 - the name that fuzzers look for
    """Renders content (after the separator) with the template before it, and with a known one."""
    source, *contents = (part.decode(errors="replace") for part in data.split(SEPARATOR, 8))
    messages = [ChatMessage("user" if index % 2 else "system", text) for index, text in enumerate([*contents, "hi"])]
    with bounded():
        segments = known().render(messages)
        # a start and an end of every message, and the start of the reply: nothing from content
        assert sum(segment.is_template for segment in segments) == 2 * len(messages) + 1
        text = "".join(segment.text for segment in segments if not segment.is_template)
        assert all(message.content in text for message in messages)
    with bounded():
        template(source).render(messages)


def template(source: str) -> ChatTemplate:
    """Returns a template whose clock stands still."""
    clock = datetime(2024, 7, 26, tzinfo=UTC)
    return ChatTemplate(
        source, bos_token="<|im_start|>", eos_token="<|im_end|>", clock=lambda: clock, special_tokens=SPECIAL
    )


@cache
def known() -> ChatTemplate:
    """Returns the template of real models, compiled once."""
    return template(CHAT_TEMPLATE)
