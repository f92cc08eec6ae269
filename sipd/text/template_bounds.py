"""How long a text gets before it is made: the bounds on what one rendering of a chat template builds.

Invariant: a bound is checked from lengths alone, before anything of the refused size exists. Imported only with
template_environment, because Jinja2 costs memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from jinja2.utils import Namespace

MAX_CHARS = 4 << 20  # of one value: prompts have 1 MiB at most
MAX_MADE_CHARS = 64 << 20  # of all values that one rendering makes
MAX_ITEMS = 1 << 17  # of a list, and parts that a text is taken into
MAX_REPEATED_CHARS = 1 << 20
_MAX_NODES = 1 << 15  # written out at once: all messages together have a tenth
_MAX_INDENT = 64
_MAX_EXPONENT = 64
_MAX_INT_BITS = 1 << 14  # more digits than Python prints
_NUMBER_CHARS = 400  # of the largest float, written out
_PERCENT = re.compile(r"%(?:\([^)]*\))?[#0\- +]*(\*|\d+)?(?:\.(\*|\d+))?")
_LINE_END = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_DIGITS = re.compile(r"\d+")


class TemplateBoundError(TemplateError):
    """The template ran over its bounds."""


def check_chars(n_chars: int) -> int:
    """Returns `n_chars`; raises TemplateBoundError when no value may be that long."""
    if n_chars > MAX_CHARS:
        raise TemplateBoundError(f"the template makes a text of {n_chars} characters, at most {MAX_CHARS}")
    return n_chars


def check_items(n_items: int) -> int:
    """Returns `n_items`; raises TemplateBoundError when no list may be that long."""
    if n_items > MAX_ITEMS:
        raise TemplateBoundError(f"the template makes a list of {n_items} items, at most {MAX_ITEMS}")
    return n_items


def check_int(value: object) -> None:
    """Raises TemplateBoundError for a number that is larger than any length."""
    if isinstance(value, int) and abs(value) > MAX_CHARS:
        raise TemplateBoundError(f"{value!r:.80} is above {MAX_CHARS}")


def check_bits(n_bits: int) -> None:
    """Raises TemplateBoundError when a whole number would have too many digits."""
    if n_bits > _MAX_INT_BITS:
        raise TemplateBoundError(f"the template makes a number of {n_bits} bits, at most {_MAX_INT_BITS}")


def shallow_size(value: object) -> int:
    """Returns what making `value` cost beside what it refers to: characters, or 8 for each item."""
    if isinstance(value, str | bytes):
        return check_chars(len(value))
    if isinstance(value, list | tuple | dict | set | frozenset):
        return 8 * check_items(len(value))
    return 0


def text_size(value: object, per_node: int = 4, per_level: int = 0) -> int:
    """Returns a bound on the characters of `value` as text, nested values included.

    `per_node` and `per_level` are characters for each value, and for each level that it stands below the first.
    Raises TemplateBoundError as soon as the sum is above MAX_CHARS, or for too many values.
    """
    if isinstance(value, str):
        return check_chars(len(value))
    total, n_nodes = 0, 1
    waiting: list[tuple[object, int]] = [(value, 0)]
    while waiting:
        node, level = waiting.pop()
        total = check_chars(total + per_node + per_level * level + _leaf_chars(node))
        children = _children(node)
        n_nodes += len(children)
        if n_nodes > _MAX_NODES:
            raise TemplateBoundError(f"the template writes out more than {_MAX_NODES} values at once")
        waiting.extend((child, level + 1) for child in children)
    return total


def percent_size(form: str | bytes, arguments: object) -> int:
    """Returns a bound on the length of `form % arguments`; refuses widths that are arguments themselves."""
    text = form.decode("latin-1") if isinstance(form, bytes) else form
    total, n_fields = len(text), 0
    for found in _PERCENT.finditer(text):
        n_fields += 1
        for width in found.groups(default="0"):
            if width == "*":
                raise TemplateBoundError("a width of '*' in a % format is not supported")
            total = check_chars(total + _digits(width))
    values: Iterable[object] = arguments if isinstance(arguments, tuple) else (arguments,)
    if isinstance(arguments, Mapping):
        values = (arguments, *arguments.values())
    return check_chars(total + n_fields * max(map(text_size, values), default=0))


def replaced_size(text: Any, old: Any, new: Any, count: object = -1) -> int:  # noqa: ANN401 - texts or bytes
    """Returns a bound on the length of `text.replace(old, new, count)`."""
    n_found = text.count(old)
    if isinstance(count, int) and count >= 0:
        n_found = min(n_found, count)
    return check_chars(len(text) + n_found * max(0, len(new) - len(old)))


def joined_size(separator: Any, items: Sequence[object]) -> int:  # noqa: ANN401 - a text or bytes
    """Returns a bound on the length of the items as text with `separator` between them."""
    total = len(separator) * len(items)
    for item in items:
        total = check_chars(total + (len(item) if isinstance(item, str | bytes) else text_size(item)))
    return check_chars(total)


def indented_size(text: str, width: object) -> int:
    """Returns a bound on the length of `text` with each line indented by `width`, a number or a text."""
    n_lines = 1 + sum(1 for _ in _LINE_END.finditer(text))
    return check_chars(len(text) + n_lines * (len(width) if isinstance(width, str) else _as_int(width)))


def json_size(value: object, indent: object, separators: Sequence[str] | None) -> int:
    """Returns a bound on the length of `value` as JSON before escapes."""
    n_indent = len(indent) if isinstance(indent, str) else _as_int(indent or 0)
    if n_indent > _MAX_INDENT:
        raise TemplateBoundError(f"an indent of {n_indent} is above {_MAX_INDENT}")
    return text_size(value, 4 + sum(map(len, separators or ())), n_indent)


def spec_size(value: object, spec: str) -> int:
    """Returns a bound on the length of `format(value, spec)`."""
    return check_chars(text_size(value) + len(spec) + sum(_digits(digits) for digits in _DIGITS.findall(spec)))


def check_power(base: object, exponent: object) -> None:
    """Raises TemplateBoundError when a power would have too many digits."""
    if not isinstance(exponent, int | float) or abs(exponent) > _MAX_EXPONENT:
        raise TemplateBoundError(f"exponent {exponent!r:.80} is above {_MAX_EXPONENT}")
    if isinstance(base, int):
        check_bits(int(base.bit_length() * abs(exponent)))


def check_product(left: object, right: object) -> None:
    """Raises TemplateBoundError when a product would have too many digits or items."""
    if isinstance(left, int) and isinstance(right, int):
        check_bits(left.bit_length() + right.bit_length())
    for value, times in ((left, right), (right, left)):
        if isinstance(value, Sequence) and isinstance(times, int) and len(value) * times > MAX_REPEATED_CHARS:
            raise TemplateBoundError(f"a text or list is repeated to more than {MAX_REPEATED_CHARS} items")


def check_split(text: Any, separator: Any) -> None:  # noqa: ANN401 - texts or bytes
    """Raises TemplateBoundError when a split would give too many parts."""
    if separator:
        check_items(1 + text.count(separator))
    elif len(text) > MAX_ITEMS:
        check_items(len(text.split(None, MAX_ITEMS)))


def _digits(text: str) -> int:
    return int(text) if len(text) < 10 else check_chars(10**9)


def _as_int(value: object) -> int:
    return max(0, value) if isinstance(value, int) else 0


def _leaf_chars(value: object) -> int:
    if isinstance(value, str | bytes):
        return len(value) * (1 if isinstance(value, str) else 4)
    if isinstance(value, int):
        return value.bit_length() // 3 + 1
    return _NUMBER_CHARS if isinstance(value, float | complex) else 16


def _children(value: object) -> Sequence[object]:
    if isinstance(value, Namespace):
        value = object.__getattribute__(value, "_Namespace__attrs")
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset | type({}.items()) | type({}.values()) | type({}.keys())):
        return list(value)
    return ()
