"""Merges of a SentencePiece BPE vocabulary, derived from its pieces and scores.

Invariant: merges come in the order in which SentencePiece prefers them: higher score first. Only pieces given
here can be made by a merge, so control, unknown and byte tokens must be left out by the caller.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

SPACE = "\u2581"
_BYTE_PIECE_CHARS = len("<0x00>")


def derive_merges(scores: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Yields (left, right) for every way to build a piece from two pieces, best score first.

    Pieces of equal score keep the order of the vocabulary.
    """
    for piece in sorted(scores, key=scores.__getitem__, reverse=True):
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in scores and right in scores:
                yield left, right


def byte_of(piece: str) -> int | None:
    """Returns the value of a byte token `<0xNN>`, or None when `piece` is not one."""
    if len(piece) == _BYTE_PIECE_CHARS and piece.startswith("<0x") and piece.endswith(">"):
        try:
            return int(piece[3:5], 16)
        except ValueError:
            return None
    return None
