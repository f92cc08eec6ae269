"""What one pass computes: rows, the sequences they belong to, and which rows give logits."""

from __future__ import annotations

from dataclasses import dataclass, field

from sipd.engine.kv_cache import PageList
from sipd.engine.prefix_cache import Node
from sipd.engine.request import Request
from sipd.engine.speculation import Drafting


@dataclass(eq=False, slots=True)
class Sequence:
    """An admitted request: its pages, and how many of its tokens the pass under way computes."""

    request: Request
    pages: PageList
    chain: list[Node] = field(default_factory=list)  # the shared ones among its pages, in order
    drafting: Drafting = field(default_factory=Drafting)
    n_rows: int = 0  # of the pass under way, drafts not counted
    drafts: tuple[int, ...] = ()  # tokens that the pass under way verifies
    parked_since: float | None = None  # time.monotonic() seconds; its reader has been behind since then
    is_stuck: bool = False  # for so long that it yields to whoever waits
    is_restoring: bool = False  # its pages are being read from disk

    @property
    def n_tokens(self) -> int:
        """Prompt and output so far."""
        return len(self.request.prompt_ids) + len(self.request.output_ids)

    def token(self, position: int) -> int:
        """The token at a position."""
        n_prompt = len(self.request.prompt_ids)
        if position < n_prompt:
            return self.request.prompt_ids[position]
        return self.request.output_ids[position - n_prompt]

    def tokens(self, first: int = 0) -> list[int]:
        """Prompt and output so far, from position `first` on."""
        n_prompt = len(self.request.prompt_ids)
        return [*self.request.prompt_ids[first:], *self.request.output_ids[max(0, first - n_prompt) :]]

    @property
    def n_left(self) -> int:
        """Tokens whose keys and values are not computed yet."""
        return self.n_tokens - self.request.n_computed

    @property
    def is_decoding(self) -> bool:
        """Whether its prompt is done."""
        return bool(self.request.output_ids)


@dataclass(slots=True)
class PassPlan:
    """The rows of one pass: (token, position, sequence, logits row or -1), and the sequences in row order."""

    sequences: list[Sequence] = field(default_factory=list)
    rows: list[tuple[int, int, int, int]] = field(default_factory=list)
    sampling: list[tuple[Sequence, int]] = field(default_factory=list)  # who draws, and its first logits row
    n_logits: int = 0

    @property
    def pages(self) -> list[list[int]]:
        """Pages of each sequence, in row order."""
        return [sequence.pages.pages for sequence in self.sequences]

    @property
    def n_positions(self) -> int:
        """Positions that the rows look back on, summed."""
        return sum(position for _, position, _, _ in self.rows)

    def add(self, sequence: Sequence) -> None:
        """Adds the rows of one sequence: `n_rows` of its tokens, and its drafts when these reach its last token."""
        first = sequence.request.n_computed
        end = first + sequence.n_rows
        index = len(self.sequences)
        self.sequences.append(sequence)
        is_last = end == sequence.n_tokens
        drafts = sequence.drafts if is_last else ()
        sequence.pages.cover(end + len(drafts))
        for position in range(first, end):
            self.rows.append((sequence.token(position), position, index, -1))
        if not is_last:
            return
        self.sampling.append((sequence, self.n_logits))
        token, position, _, _ = self.rows[-1]
        self.rows[-1] = (token, position, index, self.n_logits)
        self.n_logits += 1
        for offset, draft in enumerate(drafts):
            self.rows.append((draft, end + offset, index, self.n_logits))
            self.n_logits += 1
