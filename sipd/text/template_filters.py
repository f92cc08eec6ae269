"""Which filters a chat template may use, and what is checked of their arguments before they run.

Invariant: a filter that could make more than it is given has a rule here or is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sipd.text.template_bounds import (
    TemplateBoundError,
    check_chars,
    check_int,
    check_items,
    check_power,
    indented_size,
    joined_size,
    json_size,
    percent_size,
    replaced_size,
    text_size,
)

# Made for web pages: their output is not bounded by lengths, and no chat needs them.
DROPPED = ("pprint", "urlencode", "urlize", "xmlattr")

# These look at values, or hand them on, and write no text.
_HANDING_ON = frozenset({
    "attr", "batch", "count", "d", "default", "dictsort", "first", "groupby", "items", "last", "length", "list", "map",
    "max", "min", "random", "reject", "rejectattr", "reverse", "select", "selectattr", "slice", "sort", "sum", "unique",
})  # fmt: skip
_TAKING_APART = frozenset({"batch", "list", "slice", "sort", "striptags", "title", "unique", "wordcount", "wordwrap"})


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a filter is called with; the first of `given` is the value in front of the bar."""

    given: tuple[Any, ...]
    named: Mapping[str, Any]

    @property
    def value(self) -> Any:  # noqa: ANN401 - whatever the template has
        """What stands before the bar."""
        return self.given[0]

    def get(self, index: int, name: str, default: object = None) -> Any:  # noqa: ANN401 - likewise
        """Returns the argument at `index`, or the one of that name."""
        return self.given[index] if len(self.given) > index else self.named.get(name, default)


def check_filter(name: str, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Raises TemplateBoundError where the filter `name` would make too much of these arguments."""
    if not given:
        return
    arguments = Arguments(given, named)
    if name in _TAKING_APART and isinstance(arguments.value, str):
        check_items(len(arguments.value))
    if name not in _HANDING_ON:
        text_size(arguments.value)
    rule = _RULES.get(name)
    if rule is not None:
        rule(arguments)


def _numbers(arguments: Arguments) -> None:
    for each in (*arguments.given[1:], *arguments.named.values()):
        check_int(each)


def _parts(arguments: Arguments) -> None:
    for each in (*arguments.given[1:2], *arguments.named.values()):
        if isinstance(each, int):
            check_items(each)


def _wordwrap(arguments: Arguments) -> None:
    _numbers(arguments)
    check_chars(len(str(arguments.value)) * (1 + len(arguments.get(3, "wrapstring") or "")))


def _format(arguments: Arguments) -> None:
    percent_size(str(arguments.value), arguments.named or arguments.given[1:])


def _indent(arguments: Arguments) -> None:
    indented_size(str(arguments.value), arguments.get(1, "width", 4))


def _join(arguments: Arguments) -> None:
    joined_size(str(arguments.get(1, "d", "")), arguments.value)


def _replace(arguments: Arguments) -> None:
    old, new = str(arguments.get(1, "old")), str(arguments.get(2, "new"))
    replaced_size(str(arguments.value), old, new, arguments.get(3, "count"))


def _round(arguments: Arguments) -> None:
    check_power(10, arguments.get(1, "precision", 0))


def _sum(arguments: Arguments) -> None:
    if not isinstance(arguments.get(2, "start", 0), int | float):
        raise TemplateBoundError("a sum of anything but numbers is not supported")


def _tojson(arguments: Arguments) -> None:
    json_size(arguments.value, arguments.get(2, "indent"), arguments.get(3, "separators"))


_RULES: Mapping[str, Callable[[Arguments], None]] = {
    "batch": _parts,
    "center": _numbers,
    "format": _format,
    "indent": _indent,
    "join": _join,
    "replace": _replace,
    "round": _round,
    "slice": _parts,
    "sum": _sum,
    "tojson": _tojson,
    "truncate": _numbers,
    "wordwrap": _wordwrap,
}
