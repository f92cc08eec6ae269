"""Puts tokens together into text deltas: detokenizer, stop strings and the ids behind the text.

Invariant: the ids given so far are exactly those whose text has been given so far; a token is never split over two
deltas, so a token whose text (or a part of it) is held back waits with its text. At the end all ids are given.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sipd.text.detokenizer import Detokenizer
    from sipd.text.stop import StopMatcher


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text, the ids behind it, and the stop string that ended the text, if one did."""

    text: str
    ids: tuple[int, ...]
    matched: str | None = None

    def __bool__(self) -> bool:
        """Whether there is anything to send."""
        return bool(self.text or self.ids or self.matched)


class TextAssembler:
    """The text of one reply; used by one thread at a time."""

    def __init__(self, detokenizer: Detokenizer, stop: StopMatcher) -> None:
        self._detokenizer = detokenizer
        self._stop = stop
        self._pending: deque[tuple[int, int]] = deque()  # (id, characters that came with it)
        self._text = ""  # certain text that is not given yet, because its last token is not certain as a whole
        self._matched: str | None = None

    def push(self, token_id: int) -> TextDelta:
        """Returns what can be given after this token. After a match, nothing more."""
        if self._matched is not None:
            return TextDelta("", (), self._matched)
        piece = self._detokenizer.push(token_id)
        self._pending.append((token_id, len(piece)))
        certain, self._matched = self._stop.push(piece)
        self._text += certain
        return self._release_all() if self._matched is not None else self._release_certain()

    def flush(self) -> TextDelta:
        """Returns the rest at the end: all held text and all ids. After a match, nothing."""
        if self._matched is not None:
            return TextDelta("", (), self._matched)
        certain, self._matched = self._stop.push(self._detokenizer.flush())
        self._text += certain + self._stop.flush()
        return self._release_all()

    def _release_certain(self) -> TextDelta:
        """Gives the longest run of whole tokens whose text is certain and that ends with text."""
        n_tokens = n_chars = end = 0
        for index, (_, length) in enumerate(self._pending):
            if end + length > len(self._text):
                break
            end += length
            if length:
                n_tokens, n_chars = index + 1, end
        ids = tuple(self._pending.popleft()[0] for _ in range(n_tokens))
        text, self._text = self._text[:n_chars], self._text[n_chars:]
        return TextDelta(text, ids)

    def _release_all(self) -> TextDelta:
        ids = tuple(token_id for token_id, _ in self._pending)
        self._pending.clear()
        text, self._text = self._text, ""
        return TextDelta(text, ids, self._matched)
