"""What the server needs of the engine and of text, as protocols: nothing here is implemented."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sipd.engine.request import EngineStatus, Request, RequestProgress
from sipd.text.assembler import TextDelta


class EngineLike(Protocol):
    """The engine; every method may be called from any thread."""

    @property
    def context_tokens(self) -> int:
        """Tokens that prompt and completion of one request may have together."""

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""

    @property
    def rows_per_pass(self) -> int:
        """Token positions that one pass computes at most."""

    @property
    def isa(self) -> str:
        """Kernels in use."""

    @property
    def arithmetic_contract(self) -> int:
        """Version of the arithmetic contract: equal versions give equal tokens."""

    @property
    def uses_direct_io(self) -> bool:
        """Whether reads bypass the page cache now; a failing read may end it."""

    def submit(self, request: Request) -> None:
        """Queues a request; raises Overloaded, OverBudget, PromptTooLong or Draining."""

    def cancel(self, request: Request) -> None:
        """Ends a request within one block; does nothing when it has ended."""

    def progress(self, request: Request) -> RequestProgress:
        """Returns where a request stands."""

    def status(self) -> EngineStatus:
        """Returns a snapshot."""

    def drain(self, grace_s: float) -> None:
        """Takes no new requests, waits up to `grace_s` for live ones, then cancels them. Blocks."""

    def stop(self) -> None:
        """Ends the engine's thread. Blocks."""


class AssemblerLike(Protocol):
    """Turns the ids of one request into text pieces; owned by the engine thread. Never blocks, never raises."""

    def push(self, token_id: int) -> TextDelta:
        """Returns what became certain; empty text and ids while something is held back."""

    def flush(self) -> TextDelta:
        """Returns everything held back; called once, at the end."""


class TextLike(Protocol):
    """Tokenizer, chat template and assembler of one model."""

    @property
    def end_ids(self) -> frozenset[int]:
        """Token ids that end a generation."""

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` can be called."""

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> Sequence[int]:
        """Returns token ids; blocks for about a second per MB."""

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> Sequence[int]:
        """Returns the ids of (role, content) messages in the model's template; raises InvalidRequest."""

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of `ids`; bytes that are no valid UTF-8 become U+FFFD."""

    def assembler(self, prompt_ids: Sequence[int], stop_strings: Sequence[str], *, include_stop: bool) -> AssemblerLike:
        """Returns a fresh assembler for the reply to `prompt_ids`."""
