"""Turns the input of a request into token ids: size first, then tokenising, then the context.

Invariant: nothing is truncated, and nothing large is done before the byte limit was checked. Ids are kept four bytes
each: as Python numbers the prompts of a full queue would be megabytes that nobody granted.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence

from sipd.errors import InvalidRequest, PromptTooLong
from sipd.server.contracts import TextLike
from sipd.server.served_model import ServedModel
from sipd.text.chat_template import MAX_MESSAGES
from sipd.v1 import generation_pb2 as pb

_THREAD_BYTES = 16 * 1024  # about 10 ms of tokenising on a small board: more would be felt by other streams


class PromptReader:
    """Reads prompts for one model, for all services; owned by the event loop's thread."""

    def __init__(self, served: ServedModel) -> None:
        self._served = served
        self._max_prompt_bytes = served.max_prompt_bytes
        self._one_long_prompt = asyncio.Lock()

    async def read(self, message: pb.GenerateRequest) -> array[int]:
        """Returns the prompt's ids, at least one and at most the context minus one; raises InvalidRequest."""
        kind = message.WhichOneof("input")
        if kind == "token_ids":
            ids = self._given_ids(message.token_ids.ids)
        elif kind == "chat":
            ids = await self._chat_ids(message.chat)
        elif kind == "prompt":
            ids = await self.encode(
                message.prompt,
                add_special=message.add_special_tokens if message.HasField("add_special_tokens") else True,
                parse_special=message.parse_special_tokens,
            )
        else:
            raise InvalidRequest("input", "none given, wanted one of prompt, token_ids, chat")
        if not ids:
            raise InvalidRequest("input", "empty prompt: it has no tokens, wanted at least one")
        context_tokens = self._served.engine.context_tokens
        if len(ids) + 1 > context_tokens:
            raise PromptTooLong(len(ids), context_tokens)
        return ids

    async def encode(self, text: str, *, add_special: bool, parse_special: bool, field: str = "prompt") -> array[int]:
        """Returns the ids of `text`; raises InvalidRequest naming `field`."""
        model_text = self._require_text(field)
        n_bytes = self._check_bytes(text, field)

        def encode() -> array[int]:
            return array("I", model_text.encode(text, add_special=add_special, parse_special=parse_special))

        return await self._in_turn(encode, n_bytes)

    async def _chat_ids(self, chat: pb.ChatInput) -> array[int]:
        text = self._require_text("chat")
        if not text.has_chat_template:
            raise InvalidRequest("chat", "the model has no chat template, wanted prompt or token_ids")
        if not chat.messages:
            raise InvalidRequest("chat.messages", "empty prompt: no messages, wanted at least one")
        if len(chat.messages) > MAX_MESSAGES:  # before any of them is looked at
            raise InvalidRequest("chat.messages", f"found {len(chat.messages)} messages, wanted at most {MAX_MESSAGES}")
        n_bytes = self._check_bytes("".join(each.role + each.content for each in chat.messages), "chat.messages")
        messages = [(each.role, each.content) for each in chat.messages]

        def encode() -> array[int]:
            return array("I", text.encode_chat(messages))

        return await self._in_turn(encode, n_bytes)

    async def _in_turn(self, encode: Callable[[], array[int]], n_bytes: int) -> array[int]:
        """Returns what `encode` returns; large texts one at a time, since the budget holds memory for one."""
        if n_bytes <= _THREAD_BYTES:
            return encode()
        async with self._one_long_prompt:
            return await asyncio.to_thread(encode)

    def _given_ids(self, ids: Sequence[int]) -> array[int]:
        context_tokens, vocab_size = self._served.engine.context_tokens, self._served.engine.vocab_size
        if len(ids) + 1 > context_tokens:
            raise PromptTooLong(len(ids), context_tokens)
        for position, token_id in enumerate(ids):
            if token_id >= vocab_size:
                raise InvalidRequest(
                    "token_ids.ids", f"id {token_id} at position {position} is outside the vocabulary of {vocab_size}"
                )
        return array("I", ids)

    def _require_text(self, field: str) -> TextLike:
        if self._served.text is None:
            raise InvalidRequest(field, "the model came without tokenizer files, wanted token_ids")
        return self._served.text

    def _check_bytes(self, text: str, field: str) -> int:
        n_bytes = len(text) if text.isascii() else len(text.encode())
        if n_bytes > self._max_prompt_bytes:
            raise InvalidRequest(field, f"has {n_bytes} bytes, wanted at most {self._max_prompt_bytes}")
        return n_bytes
