"""Messages as JSON."""

from __future__ import annotations

import json
import math

import pytest

from sipd_client.errors import error_of
from sipd_client.events import event_to_dict, to_dict
from sipd_client.v1.generation_pb2 import Accepted, Finished, FinishReason, Logprob, Sampling, Token
from sipd_client.v1.status_pb2 import Cgroup


def test_an_event_stands_under_its_name_with_zero_values() -> None:
    assert event_to_dict(Token(text="é", ids=[1, 0])) == {"token": {"text": "é", "ids": [1, 0], "logprobs": []}}


def test_numbers_of_64_bits_stay_numbers() -> None:
    finished = to_dict(Finished(streamed_bytes=2**64 - 1))
    assert json.loads(json.dumps(finished))["streamed_bytes"] == 2**64 - 1


def test_an_unset_option_is_absent_and_a_set_zero_is_there() -> None:
    assert to_dict(Sampling(temperature=0.0)) == {"temperature": 0.0, "logit_bias": {}}
    assert "limit_bytes" not in to_dict(Cgroup())


def test_only_the_set_member_of_a_oneof_is_there() -> None:
    finished = to_dict(Finished(stop_string=""))
    assert finished["stop_string"] == ""
    assert "stop_token_id" not in finished


def test_enums_are_names_and_unknown_ones_numbers() -> None:
    assert to_dict(Finished(reason=FinishReason.FINISH_REASON_LENGTH))["reason"] == "FINISH_REASON_LENGTH"
    later = Finished.FromString(b"\x08\x63")
    assert to_dict(later)["reason"] == 99


def test_a_32_bit_float_has_no_false_digits() -> None:
    assert to_dict(Accepted(sampling=Sampling(temperature=0.8)))["sampling"]["temperature"] == 0.8


@pytest.mark.parametrize(("value", "text"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")])
def test_numbers_that_json_lacks_are_words(value: float, text: str) -> None:
    assert to_dict(Logprob(logprob=value))["logprob"] == text


def test_maps_have_text_keys_in_numeric_order() -> None:
    assert list(to_dict(Sampling(logit_bias={10: 1.0, 9: 0.5}))["logit_bias"].items()) == [("9", 0.5), ("10", 1.0)]


@pytest.mark.parametrize("encoded", [b"\x1a\xff", b"\x1a\x05ab", b"\xff", b"\x1b", b"\x1a\x04\x0a\x02\xff\xfe"])
def test_broken_error_details_leave_status_and_message(encoded: bytes) -> None:
    error = error_of("INTERNAL", "a pass failed", [("grpc-status-details-bin", encoded)])
    assert (error.status, error.message, error.reason) == ("INTERNAL", "a pass failed", "")
