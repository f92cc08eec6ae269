"""The sandboxed Jinja2 in which chat templates run, with the helpers that published templates expect.

Invariant: a template reaches no Python internals, and the loops, calls, repetitions and output of one rendering
are bounded. Imported only when a chat is rendered, because Jinja2 costs memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from datetime import datetime
from typing import TYPE_CHECKING

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

if TYPE_CHECKING:
    from jinja2.runtime import Context

MAX_STEPS = 1_000_000  # loop turns and calls of one rendering: about a second; real templates take hundreds
MAX_REPEATED_CHARS = 1 << 20
_MAX_EXPONENT = 64


class TemplateBoundError(TemplateError):
    """The template ran over its bounds."""


class _GenerationTag(Extension):
    """`{% generation %}` … `{% endgeneration %}`: marks the reply for training; here its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012 - Jinja2's interface

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """An environment for one template; one rendering at a time."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, clock: Callable[[], datetime]) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag])
        self.n_steps = 0
        self._clock = clock
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = self._strftime_now
        self.filters["tojson"] = _to_json
        self.filters["sipd_bounded"] = self._bounded

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Parses, and puts a counter around what each loop walks over."""
        template = super()._parse(source, name, filename)
        for loop in list(template.find_all(nodes.For)):
            loop.iter = nodes.Filter(loop.iter, "sipd_bounded", [], [], None, None, lineno=loop.lineno)
        template.set_environment(self)
        return template

    def call(self, context: Context, function: object, /, *args: object, **kwargs: object) -> object:
        """Calls as the sandbox does, counted."""
        self._count(1)
        return super().call(context, function, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """Multiplies unless the result would be huge."""
        if operator == "**":
            if not isinstance(right, (int, float)) or abs(right) > _MAX_EXPONENT:
                raise TemplateBoundError(f"exponent {right!r:.80} is above {_MAX_EXPONENT}")
        else:
            for value, times in ((left, right), (right, left)):
                if isinstance(value, Sequence) and isinstance(times, int) and len(value) * times > MAX_REPEATED_CHARS:
                    raise TemplateBoundError(f"a text or list is repeated to more than {MAX_REPEATED_CHARS} items")
        return super().call_binop(context, operator, left, right)

    def _count(self, n_steps: int) -> None:
        self.n_steps += n_steps
        if self.n_steps > MAX_STEPS:
            raise TemplateBoundError(f"the template takes more than {MAX_STEPS} steps")

    def _bounded(self, items: object) -> object:
        if isinstance(items, Sized):
            self._count(len(items))
            return items
        return self._counted(items) if isinstance(items, Iterable) else items

    def _counted(self, items: Iterable[object]) -> Iterator[object]:
        for item in items:
            self._count(1)
            yield item

    def _strftime_now(self, form: str) -> str:
        return self._clock().strftime(form)


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message))


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Returns JSON without HTML escapes, as training data was written."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
