"""The text side of a model for the server: tokenizer, chat template and assembler behind one object."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sipd.text.assembler import TextAssembler
from sipd.text.chat_template import ChatMessage, ChatTemplate, encode_chat
from sipd.text.detokenizer import Detokenizer
from sipd.text.stop import StopMatcher
from sipd.text.tokenizer import Tokenizer
from sipd.weights.tensor_table import Checkpoint


class ModelText:
    """Implements contracts.TextLike; immutable, usable from any thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._template = ChatTemplate.of(tokenizer, clock=lambda: datetime.now().astimezone())

    @property
    def vocab_size(self) -> int:
        """Entries of the vocabulary."""
        return self._tokenizer.vocab_size

    @property
    def end_ids(self) -> frozenset[int]:
        """Token ids that end a generation."""
        return frozenset(self._tokenizer.end_ids)

    @property
    def has_chat_template(self) -> bool:
        """Whether the model came with a chat template."""
        return self._template.exists

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Returns token ids."""
        return self._tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """Returns the ids of (role, content) messages; raises InvalidRequest."""
        return encode_chat(self._tokenizer, self._template, [ChatMessage(role, text) for role, text in messages])

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of `ids`."""
        return self._tokenizer.decode(ids)

    def assembler(self, prompt_ids: Sequence[int], stop_strings: Sequence[str], *, include_stop: bool) -> TextAssembler:
        """Returns the assembler of the reply to `prompt_ids`."""
        detokenizer = Detokenizer.after_prompt(self._tokenizer, prompt_ids)
        return TextAssembler(detokenizer, StopMatcher(stop_strings, include_stop=include_stop))


def read_model_text(checkpoint: Checkpoint) -> ModelText | None:
    """Returns the text side of a checkpoint, or None when it came without a tokenizer; raises TokenizerError."""
    if checkpoint.file_format == "gguf":
        if "tokenizer.ggml.model" not in checkpoint.metadata:
            return None
        return ModelText(Tokenizer.from_gguf(checkpoint.metadata))
    if not (checkpoint.path / "tokenizer.json").exists():
        return None
    return ModelText(Tokenizer.from_directory(checkpoint.path))
