"""Fuzz target: the bytes of a request, through protobuf, the checks of every option and the prompt reader.

Invariant: a request becomes options within their bounds and a prompt that fits, or a status that gRPC can carry.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any, cast

from sipd.config import Config
from sipd.errors import InvalidRequest, SipdError
from sipd.server import options
from sipd.server.failure import describe
from sipd.server.methods import _parser
from sipd.server.model_text import ModelText
from sipd.server.prompt import PromptReader
from sipd.text.tokenizer import Tokenizer
from sipd.v1 import generation_pb2, model_pb2
from tests.fuzz.bounds import bounded
from tests.unit.text.samples import gpt2_metadata
from tests.vocabularies import CHAT_TEMPLATE

MESSAGES = (
    generation_pb2.GenerateRequest,
    model_pb2.TokenizeRequest,
    model_pb2.DetokenizeRequest,
    model_pb2.GetModelRequest,
)
VOCAB_SIZE = 300
CONTEXT_TOKENS = 512
MAX_BYTES = 8192  # below what the prompt reader gives to a thread
MAX_METADATA_BYTES = 8192  # the server's own bound of a header
DICTIONARY = (
    b"\x0a\x04",
    b"\x12",
    b"\x1a",
    b"\x22\x05\x0d",
    b"\x00\x00\xc0\x7f",
    b"\x2a",
    b"\xff" * 9 + b"\x01",
    b"user",
)


def TestOneInput(data: bytes) -> None:  # noqa: N802 - the name that fuzzers look for
    """Parses what follows the first byte as the message that the first byte picks, and checks it."""
    kind: Any = MESSAGES[data[0] % len(MESSAGES)] if data else MESSAGES[0]
    with bounded():
        message = _parser(kind, lambda: MAX_BYTES)(data[1:])
        try:
            if isinstance(message, SipdError):
                raise message
            check(message)
        except SipdError as error:
            check_failure(error)
            raise


def check(message: Any) -> None:  # noqa: ANN401 - one of MESSAGES
    """Does what the services do with a message before the engine sees it."""
    if isinstance(message, generation_pb2.GenerateRequest):
        assert 0 < len(options.read_request_id(message)) <= 64
        options.read_serving(message, Config())
        sampling = options.read_sampling(message.sampling, VOCAB_SIZE)
        options.write_sampling(sampling).SerializeToString()
        stop = options.read_stop(message.stop, VOCAB_SIZE)
        ids = finished(prompt_reader().read(message))
        assert 0 < len(ids) < CONTEXT_TOKENS
        assert all(token_id < VOCAB_SIZE for token_id in ids)
        assembler = text().assembler(ids, stop.strings, include_stop=stop.includes_stop)
        pushed = "".join(assembler.push(token_id).text for token_id in ids) + assembler.flush().text
        generation_pb2.Token(text=pushed).SerializeToString()
    elif isinstance(message, model_pb2.TokenizeRequest):
        finished(prompt_reader().encode(message.text, add_special=True, parse_special=message.parse_special_tokens))
    elif isinstance(message, model_pb2.DetokenizeRequest) and all(token_id < VOCAB_SIZE for token_id in message.ids):
        model_pb2.DetokenizeResponse(text=text().decode(tuple(message.ids))).SerializeToString()


def check_failure(error: SipdError) -> None:
    """Asserts that the client is blamed, in a status that fits into a header."""
    assert isinstance(error, InvalidRequest), error
    failure = describe(error)
    assert len(failure.message) + sum(len(value) for _, value in failure.trailing_metadata) < MAX_METADATA_BYTES


def finished(reading: Any) -> Any:  # noqa: ANN401 - a coroutine of the prompt reader
    """Returns the result of a coroutine that never waits."""
    try:
        reading.send(None)
    except StopIteration as end:
        return end.value
    reading.close()
    raise AssertionError("the prompt wants a thread, wanted the limit of bytes to refuse it")


@cache
def text() -> ModelText:
    """Returns the text side of a tiny model with a chat template."""
    return ModelText(Tokenizer.from_gguf(gpt2_metadata() | {"tokenizer.chat_template": CHAT_TEMPLATE}))


@cache
def prompt_reader() -> PromptReader:
    """Returns the reader of prompts for that model."""
    engine = SimpleNamespace(context_tokens=CONTEXT_TOKENS, vocab_size=VOCAB_SIZE)
    served = SimpleNamespace(text=text(), engine=engine, max_prompt_bytes=MAX_BYTES)
    return PromptReader(cast("Any", served))
