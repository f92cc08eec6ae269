"""Marks message content so that, after any ordinary template, it can be told from what the template wrote.

Invariant: marked content holds no control token, and joined to template text it forms none: a noncharacter
stands between all characters of every control token in it, and at the borders of words that could become a part
of one, inside the white space that templates trim. Taking the mark out again gives the content back.

All other words stay as they are, so that a template that measures or compares content sees what was sent. Where
content holds a control token or could become a part of one ("a>", "<", "im_end"), it sees the marks too: a length
is then too large, a comparison with a literal fails, and text is cut a little earlier. No text is lost by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING

from sipd.errors import InvalidRequest
from sipd.text.segment import Segment

if TYPE_CHECKING:
    from sipd.text.special_tokens import SpecialTokens

# Unicode noncharacters: never assigned, so text that uses all of them has no meaning to lose.
NONCHARACTERS = tuple(map(chr, chain(range(0xFDD0, 0xFDF0), (0xFFFE, 0xFFFF))))


class ContentMarks:
    """The marks of one rendered chat."""

    def __init__(self, special_tokens: SpecialTokens, texts: Iterable[str]) -> None:
        """Picks a noncharacter that `texts` do not contain; raises InvalidRequest when they contain all."""
        used = set().union(*(set(text).intersection(NONCHARACTERS) for text in texts))
        free = [char for char in NONCHARACTERS if char not in used]
        if not free:
            raise InvalidRequest("chat", "the messages contain every Unicode noncharacter, wanted text")
        self._mark = free[0]
        self._special_tokens = special_tokens

    def mark(self, content: str) -> str:
        """Returns `content` with marks where it needs them; white text never does, so that templates see it so."""
        marked: list[str] = []
        run = ""
        for text, token_id in self._special_tokens.spans(content, parse_special=True):
            if token_id is None or (not self._is_hidden(text) and not self._is_delimited(text)):
                run += text
                continue
            marked.append(self._bordered(run))
            run = ""
            # A template may look for user-defined tags such as </think>; they are allowed in any text.
            marked.append(self._broken(text) if self._is_hidden(text) else text)
        marked.append(self._bordered(run))
        return "".join(marked)

    def segments(self, rendered: str) -> list[Segment]:
        """Returns the rendered chat with special tokens of the template apart and the marks taken out."""
        segments: list[Segment] = []
        plain: list[str] = []
        for text, _ in self._special_tokens.spans(rendered, parse_special=True):
            if self._is_hidden(text):
                self._end_plain(plain, segments)
                segments.append(Segment(text, is_template=True))
            else:
                plain.append(text)
        self._end_plain(plain, segments)
        return segments

    def _end_plain(self, plain: list[str], segments: list[Segment]) -> None:
        text = "".join(plain).replace(self._mark, "")
        plain.clear()
        if text:
            segments.append(Segment(text, is_template=False))

    def _is_hidden(self, text: str) -> bool:
        return self._special_tokens.hidden_id(text) is not None

    def _is_delimited(self, text: str) -> bool:
        """Whether a user-defined tag can stand without marks: no control token can be made of it and its neighbours."""
        has_brackets = text.startswith("<") and text.endswith(">")
        return has_brackets and not self._special_tokens.contained_in_hidden(text)

    def _bordered(self, text: str) -> str:
        core = text.strip()
        if not core or not (self._special_tokens.may_join(core) or self._special_tokens.may_join(text)):
            return text
        start = text.index(core)
        return f"{text[:start]}{self._mark}{core}{self._mark}{text[start + len(core) :]}"

    def _broken(self, text: str) -> str:
        return f"{self._mark}{self._mark.join(text)}{self._mark}"
