"""A run of text of a rendered chat, with its origin."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Segment:
    """`is_template` says that `text` is a special token which the template itself wrote; all else is ordinary text."""

    text: str
    is_template: bool
