"""Finds special tokens in text: control and unknown ones only on request, user-defined ones always.

Invariant: the leftmost, then longest token wins, in time linear in the text for a fixed vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from sipd.errors import TokenizerError
from sipd.text.vocabulary import HIDDEN_TYPES, TokenType

if TYPE_CHECKING:
    from sipd.text.vocabulary import SpecialToken

MIN_CONTROL_CHARS = 2  # a control token of one character could not be told from ordinary text

_Trie = dict[str, "_Trie"]


class SpecialTokens:
    """The special tokens of one vocabulary; immutable, shared by all threads."""

    def __init__(self, tokens: Iterable[SpecialToken]) -> None:
        hidden: dict[str, int] = {}
        user_defined: dict[str, int] = {}
        for token in tokens:
            if token.type in HIDDEN_TYPES and len(token.text) >= MIN_CONTROL_CHARS:
                hidden.setdefault(token.text, token.token_id)
            elif token.type is TokenType.USER_DEFINED and token.text:
                user_defined.setdefault(token.text, token.token_id)
        self._hidden = hidden
        self._ids = {**user_defined, **hidden}
        self._plain = _pattern(user_defined)
        self._all = _pattern(self._ids)
        self._first_chars = frozenset(text[0] for text in self._ids)
        self._last_chars = frozenset(text[-1] for text in self._ids)
        self._reach = max(map(len, self._ids), default=1) - 1  # characters of a token that lie beside a text's border

    def hidden_id(self, text: str) -> int | None:
        """Returns the id of the control or unknown token written `text`, or None."""
        return self._hidden.get(text)

    def contained_in_hidden(self, text: str) -> bool:
        """Returns whether some control or unknown token contains `text`."""
        return any(text in hidden for hidden in self._hidden)

    def may_join(self, text: str) -> bool:
        """Returns whether a special token could cross a border of `text`, wherever that stands; True in doubt.

        Such a token begins near the end of `text`, or ends near its start, or contains it (which does no harm when
        the token is user-defined).
        """
        begins_one = not self._first_chars.isdisjoint(text[-self._reach :])
        ends_one = not self._last_chars.isdisjoint(text[: self._reach])
        return begins_one or ends_one or (len(text) < self._reach and self.contained_in_hidden(text))

    def split(self, text: str, *, parse_special: bool) -> Iterator[int | str]:
        """Yields the ids of special tokens and the text between them, in order; no empty text."""
        for piece, token_id in self.spans(text, parse_special=parse_special):
            yield piece if token_id is None else token_id

    def spans(self, text: str, *, parse_special: bool) -> Iterator[tuple[str, int | None]]:
        """Yields (text, id) in order; the id is None for ordinary text. The texts join to `text`."""
        pattern = self._all if parse_special else self._plain
        start = 0
        if pattern is not None:
            for match in pattern.finditer(text):
                if match.start() > start:
                    yield text[start : match.start()], None
                yield match.group(), self._ids[match.group()]
                start = match.end()
        if start < len(text):
            yield text[start:], None


def _pattern(texts: Iterable[str]) -> re.Pattern[str] | None:
    """Returns one expression for all texts, or None for none: a trie, so a long list costs no more per character."""
    root: _Trie = {}
    for text in texts:
        node = root
        for char in text:
            node = node.setdefault(char, {})
        node[""] = {}
    if not root:
        return None
    try:
        return re.compile(_expression(root))
    except (RecursionError, OverflowError, re.error) as error:
        raise TokenizerError("special tokens: too deeply nested to be searched for") from error


def _expression(root: _Trie) -> str:
    """Returns the expression for a trie, longest text first; iterative, because texts may be long."""
    done: dict[int, str] = {}
    stack = [(root, False)]
    while stack:
        node, is_visited = stack.pop()
        if not is_visited:
            stack.append((node, True))
            stack.extend((child, False) for char, child in node.items() if char)
            continue
        branches = [re.escape(char) + done.pop(id(child)) for char, child in node.items() if char]
        ends_here = "" in node
        if not branches:
            done[id(node)] = ""
        elif len(branches) == 1 and not ends_here:
            done[id(node)] = branches[0]
        else:
            done[id(node)] = f"(?:{'|'.join(branches)}){'?' if ends_here else ''}"
    return done[id(root)]
