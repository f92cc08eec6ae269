"""The sandboxed Jinja2 in which chat templates run, with the helpers that published templates expect.

Invariant: a template reaches no Python internals, and the loops, calls and texts of one rendering are bounded.
Imported only when a chat is rendered, because Jinja2 costs memory.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from datetime import datetime
from types import BuiltinMethodType
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError, Undefined, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEscapeFormatter, SandboxedFormatter
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

from sipd.text.template_bounds import (
    MAX_MADE_CHARS,
    TemplateBoundError,
    check_chars,
    check_int,
    check_items,
    check_power,
    check_product,
    check_split,
    joined_size,
    percent_size,
    replaced_size,
    shallow_size,
    spec_size,
    text_size,
)
from sipd.text.template_filters import DROPPED, check_filter

if TYPE_CHECKING:
    from jinja2.runtime import Context

MAX_STEPS = 1_000_000  # loop turns and calls of one rendering: about a second; real templates take hundreds
_MAX_TIME_FORMAT = 256


class _GenerationTag(Extension):
    """`{% generation %}` … `{% endgeneration %}`: marks the reply for training; here its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012 - Jinja2's interface

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Guards(NodeTransformer):
    """Puts a counter around what loops walk over, and bounds around what no method of the environment makes."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - Jinja2's interface
        self.generic_visit(node)
        assert isinstance(node.iter, nodes.Expr)
        node.iter = _filter(node.iter, "sipd_bounded")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filter(node.nodes[0], "sipd_concat", *node.nodes[1:])

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filter(node, "sipd_made") if isinstance(node.arg, nodes.Slice) else node


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """An environment for one template; one rendering at a time."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, clock: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # what is made of constants while compiling would stand in the code
            finalize=_printable,
            extensions=[loopcontrols, _GenerationTag],
        )
        self._clock = clock
        self.start()
        self.globals.pop("lipsum", None)
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = self._strftime_now
        self.filters["tojson"] = _to_json
        for name in DROPPED:
            self.filters.pop(name, None)
        for name, function in list(self.filters.items()):
            self.filters[name] = self._guarded(name, function)
        self.filters["sipd_bounded"] = self._bounded
        self.filters["sipd_concat"] = lambda *parts: self.concat(_texts(parts))
        self.filters["sipd_made"] = self._made

    def start(self) -> None:
        """Begins a rendering: nothing is counted yet."""
        self.n_steps = 0
        self.n_made = 0

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        _Guards().visit(template)
        template.set_environment(self)
        return template

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> object:  # noqa: ANN401
        """Calls as the sandbox does, counted, and with methods of texts bounded."""
        self._count(1)
        owner = getattr(function, "__self__", None)
        if isinstance(function, BuiltinMethodType) and owner is not None:
            for value in (*args, *kwargs.values()):
                check_int(value)
        if isinstance(owner, str | bytes):
            args = self._check_method(owner, function.__name__, args, kwargs)
        return self._made(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> object:  # noqa: ANN401
        """Computes unless the result would be huge."""
        match operator:
            case "**":
                check_power(left, right)
            case "*":
                check_product(left, right)
            case "%":
                if isinstance(left, str | bytes):
                    percent_size(left, right)
            case _ if isinstance(left, str | bytes) and isinstance(right, str | bytes):
                check_chars(len(left) + len(right))
            case _ if isinstance(left, list | tuple) and isinstance(right, list | tuple):
                check_items(len(left) + len(right))
        return self._made(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:  # noqa: ANN401 - Jinja2's interface
        """Returns a bounded stand-in for `str.format` and `format_map`; None for all else."""
        if super().wrap_str_format(value) is None:
            return None
        form: str = value.__self__
        is_map = value.__name__ == "format_map"
        formatter: SandboxedFormatter = (
            _EscapeFormatter(self, escape=form.escape) if isinstance(form, Markup) else _Formatter(self)
        )

        def wrapper(*args: Any, **kwargs: Any) -> str:  # noqa: ANN401
            if is_map:
                (names,) = args
                return type(form)(formatter.vformat(form, (), names))
            return type(form)(formatter.vformat(form, args, kwargs))

        return functools.update_wrapper(wrapper, value)

    def made(self, n_chars: int) -> None:
        """Counts characters that were made; raises TemplateBoundError when they are too many together."""
        self.n_made += n_chars
        if self.n_made > MAX_MADE_CHARS:
            raise TemplateBoundError(f"the template makes more than {MAX_MADE_CHARS} characters")

    def _made(self, value: object) -> object:
        self.made(shallow_size(value))
        return value

    def concat(self, parts: Iterable[str]) -> str:
        """Puts the parts of a block or a macro together; raises TemplateBoundError for too many characters."""
        texts = parts if isinstance(parts, list) else list(parts)
        self.made(check_chars(sum(map(len, texts))))
        return "".join(texts)

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

    def _items(self, items: Any) -> list[Any]:  # noqa: ANN401 - whatever a template joins
        found: list[Any] = []
        for item in items:
            found.append(item)
            check_items(len(found))
        return found

    def _check_method(
        self,
        text: Any,  # noqa: ANN401 - a text or bytes
        name: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> tuple[Any, ...]:
        """Raises TemplateBoundError where a text's method would make too much; returns the arguments to call with."""
        match name, args:
            case (("center" | "ljust" | "rjust" | "zfill"), _):
                pass  # the number was checked
            case "expandtabs", _:
                width = kwargs.get("tabsize", args[0] if args else 8)
                tab = "\t" if isinstance(text, str) else b"\t"
                check_chars(len(text) + text.count(tab) * (width if isinstance(width, int) else 0))
            case "replace", (old, new, *rest):
                replaced_size(text, old, new, kwargs.get("count", rest[0] if rest else -1))
            case "join", (items,):
                args = (self._items(items),)
                joined_size(text, args[0])
            case "split" | "rsplit", _:
                check_split(text, kwargs.get("sep", args[0] if args else None))
            case "splitlines", _:
                check_split(text, "\n" if isinstance(text, str) else b"\n")
            case "translate", _:
                raise TemplateBoundError("translate is not supported")
        return args

    def _guarded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the filter `name` with its arguments checked before and its result counted after."""
        n_skipped = 1 if hasattr(function, "jinja_pass_arg") else 0

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> object:  # noqa: ANN401
            self._count(1)
            own, given = args[:n_skipped], args[n_skipped:]
            if name == "join" and given and not isinstance(given[0], Undefined):
                given = (self._items(given[0]), *given[1:])
            check_filter(name, given, kwargs)
            return self._made(function(*own, *given, **kwargs))

        return guarded

    def _strftime_now(self, form: str) -> str:
        if len(form) > _MAX_TIME_FORMAT:
            raise TemplateBoundError(f"a time format has {len(form)} characters, at most {_MAX_TIME_FORMAT}")
        return self._clock().strftime(form)


class _Bounds(SandboxedFormatter):
    """Bounds each field of a format, and all of them together by what the rendering may make."""

    def convert_field(self, value: Any, conversion: Any) -> Any:  # noqa: ANN401 - Python's interface
        text_size(value)
        return super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> Any:  # noqa: ANN401 - likewise
        n_chars = spec_size(value, format_spec)
        environment = self._env
        assert isinstance(environment, ChatEnvironment)
        environment.made(n_chars)
        return super().format_field(value, format_spec)


class _Formatter(_Bounds):
    """For plain texts."""


class _EscapeFormatter(_Bounds, SandboxedEscapeFormatter):
    """For texts that were marked as safe."""


def _filter(node: nodes.Expr, name: str, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


@pass_context  # a function that wants the context is never run while the template is compiled
def _printable(_context: Context, value: object) -> object:
    """Returns a value that is about to be printed; raises TemplateBoundError for a long one."""
    text_size(value)
    return value


def _texts(parts: Iterable[object]) -> list[str]:
    """Returns each part as text, as `~` does."""
    texts: list[str] = []
    n_chars = 0
    for part in parts:
        n_chars = check_chars(n_chars + text_size(part))
        texts.append(str(part))
    return texts


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
