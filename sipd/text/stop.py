"""Finds stop strings in streamed text and holds back only what could still become one.

Invariant: for any split of a text into pushes, the emitted text is the same: all text before the first stop
string that becomes complete. When several become complete with the same character, the longest one counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from sipd.errors import InvalidRequest

MAX_STRINGS = 16
MAX_STRING_BYTES = 256
_FIELD = "stop.strings"


def check_stop_strings(strings: Sequence[str]) -> None:
    """Raises InvalidRequest for too many, empty or too long stop strings."""
    if len(strings) > MAX_STRINGS:
        raise InvalidRequest(_FIELD, f"found {len(strings)} strings, wanted at most {MAX_STRINGS}")
    for index, string in enumerate(strings):
        if not string:
            raise InvalidRequest(_FIELD, f"string {index} is empty")
        n_bytes = len(string.encode(errors="surrogatepass"))
        if n_bytes > MAX_STRING_BYTES:
            raise InvalidRequest(_FIELD, f"string {index} has {n_bytes} bytes, wanted at most {MAX_STRING_BYTES}")


class StopMatcher:
    """An Aho-Corasick automaton over the stop strings of one request; used by one thread at a time.

    The depth of its state is the length of the text that could still become a stop string.
    """

    def __init__(self, strings: Sequence[str], *, include_stop: bool = False) -> None:
        """Raises InvalidRequest as `check_stop_strings`. `include_stop` emits the stop string itself too."""
        check_stop_strings(strings)
        self._includes_stop = include_stop
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._match: list[str | None] = [None]  # the longest stop string that ends in this state
        self._fallback = [0]
        for string in strings:
            self._add(string)
        self._link()
        self._state = 0
        self._held = ""
        self._matched: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """Returns (text that is certain now, the stop string that matched or None).

        After a match nothing more is emitted.
        """
        if self._matched is not None:
            return "", self._matched
        n_held = len(self._held)
        text = self._held + text
        for index in range(n_held, len(text)):
            self._state = self._step(self._state, text[index])
            self._matched = self._match[self._state]
            if self._matched is not None:
                self._held = ""
                end = index + 1 if self._includes_stop else index + 1 - len(self._matched)
                return text[:end], self._matched
        safe = len(text) - self._depth[self._state]
        self._held = text[safe:]
        return text[:safe], None

    def flush(self) -> str:
        """Returns the text held back at the end of the stream; "" after a match."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _add(self, string: str) -> None:
        state = 0
        for char in string:
            following = self._next[state].get(char)
            if following is None:
                following = len(self._next)
                self._next[state][char] = following
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._match.append(None)
                self._fallback.append(0)
            state = following
        self._match[state] = string

    def _link(self) -> None:
        """Sets each state's longest proper suffix that is a state, breadth first, and passes matches down."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for char, following in self._next[state].items():
                self._fallback[following] = self._step(self._fallback[state], char)
                if self._match[following] is None:
                    self._match[following] = self._match[self._fallback[following]]
                queue.append(following)

    def _step(self, state: int, char: str) -> int:
        while state and char not in self._next[state]:
            state = self._fallback[state]
        return self._next[state].get(char, 0)
