"""Events of a generation, and protobuf messages as plain dictionaries with the field names of the .proto files."""

from __future__ import annotations

import math
import struct
from typing import Any, TypeAlias

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from sipd_client.v1.generation_pb2 import Accepted, Finished, GenerateResponse, Progress, Token

Event: TypeAlias = Accepted | Progress | Token | Finished

_NAMES = {Accepted: "accepted", Progress: "progress", Token: "token", Finished: "finished"}


def event_of(response: GenerateResponse) -> Event | None:
    """Returns the event in `response`; None for a kind that this client does not know."""
    name = response.WhichOneof("event")
    if name is None:
        return None
    event: Event = getattr(response, name)
    return event


def event_to_dict(event: Event) -> dict[str, Any]:
    """Returns `{"token": {...}}` and the like, the shape of GenerateResponse."""
    return {_NAMES[type(event)]: to_dict(event)}


def to_dict(message: Message) -> dict[str, Any]:
    """Returns the fields of `message` by their names, ready for json.dumps.

    Zero values are there; an optional field that is not set is not. Numbers of 64 bits stay numbers (protobuf's own
    JSON makes them strings), enums are names, numbers that JSON lacks are "NaN", "Infinity" and "-Infinity".
    """
    return {
        field.name: _plain(field, getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
        if not field.has_presence or message.HasField(field.name)
    }


def _plain(field: Any, value: Any) -> Any:  # noqa: ANN401 - any field type
    """Returns the value of one field, which may be a map, a list or a single value."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        item = field.message_type.fields_by_name["value"]
        return {str(key): _single(item, value[key]) for key in sorted(value)}
    if isinstance(value, (bool, int, float, str, bytes, Message)):
        return _single(field, value)
    return [_single(field, item) for item in value]


def _single(field: Any, value: Any) -> Any:  # noqa: ANN401 - any field type
    """Returns one value as JSON can hold it."""
    if isinstance(value, Message):
        return to_dict(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else value
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        return _shortest(value) if field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT else value
    return value


def _shortest(value: float) -> float:
    """Returns the number with the fewest digits that is the same 32-bit float: 0.8, not 0.800000011920929."""
    for digits in (6, 7, 8):
        candidate = float(f"{value:.{digits}g}")
        if struct.pack("<f", candidate) == struct.pack("<f", value):
            return candidate
    return float(f"{value:.9g}")
