"""Requests from Python arguments; an option that is not given stays unset, so that the daemon's default holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from sipd_client.v1.generation_pb2 import ChatInput, ChatMessage, GenerateRequest, Priority, Sampling, Stop, TokenIds
from sipd_client.v1.model_pb2 import TokenizeRequest


class GenerateOptions(TypedDict, total=False):
    """Options of a generation; proto/sipd/v1/generation.proto gives meaning, range and default of each."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    seed: int
    logprobs: int
    max_tokens: int
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_end_tokens: bool
    include_stop_in_output: bool
    model: str
    request_id: str
    parse_special_tokens: bool
    add_special_tokens: bool
    priority: Literal["interactive", "background"]
    session: str
    prefix_cache: bool
    speculation: bool


_SAMPLING = {
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "logprobs",
}
_STOP = {"max_tokens", "ignore_end_tokens", "include_stop_in_output"}
_REQUEST = {
    "model",
    "request_id",
    "parse_special_tokens",
    "add_special_tokens",
    "session",
    "prefix_cache",
    "speculation",
}
_PRIORITIES = {"interactive": Priority.PRIORITY_INTERACTIVE, "background": Priority.PRIORITY_BACKGROUND}


def prompt_request(prompt: str | Sequence[int], options: GenerateOptions) -> GenerateRequest:
    """Returns the request for a text or token ids.

    Raises TypeError for an unknown option or a value of the wrong type, ValueError for one that its field cannot hold.
    """
    if isinstance(prompt, str):
        return _with_options(GenerateRequest(prompt=_text("prompt", prompt)), options)
    return _with_options(GenerateRequest(token_ids=TokenIds(ids=prompt)), options)


def chat_request(
    messages: Iterable[ChatMessage | Mapping[str, str] | tuple[str, str]], options: GenerateOptions
) -> GenerateRequest:
    """Returns the request for a conversation of messages, `{"role", "content"}` mappings or (role, content) pairs."""
    return _with_options(GenerateRequest(chat=ChatInput(messages=map(_message, messages))), options)


def tokenize_request(
    text: str, model: str | None, parse_special_tokens: bool | None, add_special_tokens: bool | None
) -> TokenizeRequest:
    """Returns the request for the token ids of `text`; what is None stays unset."""
    request = TokenizeRequest(text=_text("text", text), model=model)
    if parse_special_tokens is not None:
        request.parse_special_tokens = parse_special_tokens
    if add_special_tokens is not None:
        request.add_special_tokens = add_special_tokens
    return request


def _message(source: ChatMessage | Mapping[str, str] | tuple[str, str]) -> ChatMessage:
    if isinstance(source, ChatMessage):
        return source
    if isinstance(source, Mapping):
        role, content = source["role"], source["content"]
    else:
        role, content = source
    return ChatMessage(role=_text("chat.messages.role", role), content=_text("chat.messages.content", content))


def _text(field: str, value: str) -> str:
    """Returns `value`; raises ValueError naming the field when it is not Unicode, as text of a broken encoding."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{field}: character {error.start} is no Unicode, wanted text in UTF-8") from error
    return value


def _with_options(request: GenerateRequest, options: GenerateOptions) -> GenerateRequest:
    """Returns `request` with every option that is not None set in it."""
    for name, value in options.items():
        if value is not None:
            try:
                _set(request, name, value)
            except UnicodeEncodeError as error:
                raise ValueError(f"{name}: character {error.start} is no Unicode, wanted text in UTF-8") from error
            except (TypeError, ValueError) as error:
                raise type(error)(f"{name}: {error}") from error
    return request


def _set(request: GenerateRequest, name: str, value: Any) -> None:  # noqa: ANN401 - as the field wants
    if name in _SAMPLING:
        setattr(request.sampling, name, value)
    elif name in _STOP:
        setattr(request.stop, name, value)
    elif name in _REQUEST:
        setattr(request, name, value)
    elif name == "priority":
        if value not in _PRIORITIES:
            raise ValueError(f"found {value!r}, wanted one of {', '.join(_PRIORITIES)}")
        request.priority = _PRIORITIES[value]
    elif name == "logit_bias":
        request.sampling.MergeFrom(Sampling(logit_bias=value))
    elif name == "stop" and not isinstance(value, str):
        request.stop.MergeFrom(Stop(strings=value))
    elif name == "stop_token_ids":
        request.stop.MergeFrom(Stop(token_ids=value))
    else:
        raise TypeError("wanted a list of strings" if name == "stop" else "no such option")
