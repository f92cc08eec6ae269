"""Renders chat messages with the model's own template.

Invariant: message content is data. Whatever it contains, only special tokens that the template wrote are marked
as such; a control token in content, or made of content and template text together, stays ordinary text.
A default system prompt that the template writes (SmolLM2 does) is kept; an empty system message replaces it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sipd.errors import InvalidRequest
from sipd.text.content_marks import ContentMarks
from sipd.text.tokenizer import MAX_TEXT_BYTES

if TYPE_CHECKING:
    from datetime import datetime

    from jinja2 import Template

    from sipd.text.segment import Segment
    from sipd.text.special_tokens import SpecialTokens
    from sipd.text.template_environment import ChatEnvironment
    from sipd.text.tokenizer import Tokenizer

MAX_MESSAGES = 1024
MAX_SOURCE_CHARS = 1 << 20
_FIELD = "chat"
_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")

# What Python raises for a template that computes with the wrong things.
# NameError and SyntaxError: Jinja2 writes infinite numbers, and digits of other scripts, into the code it makes.
_TEMPLATE_FAULTS = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError, NameError, RecursionError, SyntaxError, TypeError),
    ValueError,
)

# Roles that published templates compare with or write between brackets to make a token, as Phi-3's <|user|>.
# They reach the template as they are; any other role is marked like content.
KNOWN_ROLES = frozenset({"system", "developer", "user", "assistant", "model", "tool", "function", "ipython"})


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation."""

    role: str
    content: str


class ChatTemplate:
    """One model's template, compiled at its first use; rendering is serialised, so any thread may call."""

    def __init__(
        self,
        source: str | None,
        *,
        bos_token: str,
        eos_token: str,
        clock: Callable[[], datetime],
        special_tokens: SpecialTokens,
    ) -> None:
        """`source` is None for a model without a template; `clock` gives the time for `strftime_now`."""
        self._source = source
        self._names = {"bos_token": bos_token, "eos_token": eos_token, "tools": None, "documents": None}
        self._clock = clock
        self._special_tokens = special_tokens
        self._compiled: tuple[ChatEnvironment, Template] | None = None
        self._lock = threading.Lock()

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, clock: Callable[[], datetime]) -> ChatTemplate:
        """Returns the template that came with the tokenizer."""
        return cls(
            tokenizer.chat_template,
            bos_token=tokenizer.bos_text,
            eos_token=tokenizer.eos_text,
            clock=clock,
            special_tokens=tokenizer.special_tokens,
        )

    @property
    def exists(self) -> bool:
        """Whether the model has a template at all."""
        return bool(self._source)

    def render(self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool = True) -> list[Segment]:
        """Returns the conversation as segments, special tokens of the template apart from all other text.

        Raises InvalidRequest for messages that cannot be rendered, with the template's own words where it has any.
        """
        _check(messages)
        marks = ContentMarks(self._special_tokens, (message.content for message in messages))
        marked = [
            {
                "role": message.role if message.role in KNOWN_ROLES else marks.mark(message.role),
                "content": marks.mark(message.content),
            }
            for message in messages
        ]
        with self._lock:
            rendered = self._render(marked, add_generation_prompt=add_generation_prompt)
        return marks.segments(rendered)

    def _render(self, messages: list[dict[str, str]], *, add_generation_prompt: bool) -> str:
        from jinja2 import TemplateError  # noqa: PLC0415 - Jinja2 costs memory that raw prompts need not pay

        try:
            environment, template = self._template()
            environment.start()
            names: dict[str, Any] = {**self._names, "add_generation_prompt": add_generation_prompt}
            return _joined(template.generate(names, messages=messages))
        except TemplateError as error:
            raise InvalidRequest(_FIELD, error.message or "the model's chat template failed") from error
        except _TEMPLATE_FAULTS as error:
            raise InvalidRequest(
                _FIELD, f"the model's chat template failed: {type(error).__name__}: {str(error)[:300]}"
            ) from error

    def _template(self) -> tuple[ChatEnvironment, Template]:
        from jinja2 import TemplateSyntaxError  # noqa: PLC0415

        from sipd.text.template_environment import ChatEnvironment  # noqa: PLC0415

        if self._compiled is None:
            if not self._source:
                raise InvalidRequest(_FIELD, "the model has no chat template, wanted a raw prompt")
            if len(self._source) > MAX_SOURCE_CHARS:
                raise InvalidRequest(
                    _FIELD, f"the model's chat template has {len(self._source)} characters, at most {MAX_SOURCE_CHARS}"
                )
            environment = ChatEnvironment(self._clock)
            try:
                self._compiled = environment, environment.from_string(self._source)
            except TemplateSyntaxError as error:
                raise InvalidRequest(
                    _FIELD, f"the model's chat template is broken at line {error.lineno}: {error.message}"
                ) from error
        return self._compiled


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[ChatMessage],
    *,
    add_generation_prompt: bool = True,
    context_tokens: int | None = None,
) -> list[int]:
    """Returns the prompt ids of a conversation, with exactly one BOS where the template or the metadata want one.

    Raises InvalidRequest and PromptTooLong as `ChatTemplate.render` and `Tokenizer.encode`.
    """
    segments = template.render(messages, add_generation_prompt=add_generation_prompt)
    return tokenizer.encode_segments(segments, context_tokens=context_tokens)


def _check(messages: Sequence[ChatMessage]) -> None:
    if not messages:
        raise InvalidRequest(_FIELD, "found no messages, wanted at least one")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequest(_FIELD, f"found {len(messages)} messages, wanted at most {MAX_MESSAGES}")
    for index, message in enumerate(messages):
        if not _ROLE.fullmatch(message.role):
            raise InvalidRequest(_FIELD, f"message {index}: role {message.role!r:.80} is not a plain name")
    n_chars = sum(len(message.content) for message in messages)
    if n_chars > MAX_TEXT_BYTES:
        raise InvalidRequest(_FIELD, f"found {n_chars} characters of content, wanted at most {MAX_TEXT_BYTES} bytes")


def _joined(pieces: Iterable[str]) -> str:
    """Returns the rendered text; raises InvalidRequest as soon as it grows over its bound."""
    parts: list[str] = []
    n_chars = 0
    for piece in pieces:
        n_chars += len(piece)
        if n_chars > 2 * MAX_TEXT_BYTES:
            raise InvalidRequest(_FIELD, f"the rendered chat has more than {2 * MAX_TEXT_BYTES} characters")
        parts.append(piece)
    return "".join(parts)
