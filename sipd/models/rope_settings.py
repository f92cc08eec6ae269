"""Rotary base and scaling, as the metadata of both file formats state them.

Invariant: two statements of one file that disagree are refused. Sources: llama.cpp's reading of the GGUF keys;
transformers' reading of config.json, where a base inside rope_scaling or rope_parameters wins over the one beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sipd.errors import UnsupportedModel
from sipd.models import rope
from sipd.models.fields import Fields, positive_number

_DEFAULT_THETA = 10000.0


@dataclass(frozen=True, slots=True)
class RopeSettings:
    """What the rotary frequencies follow from; `where` names file and key in errors."""

    theta: float
    scaling: Mapping[str, object]
    where: str
    theta_key: str

    def frequencies(self, n_rot: int) -> list[float]:
        """The n_rot / 2 frequencies; raises UnsupportedModel."""
        plain = rope.inverse_frequencies(self.theta, n_rot, f"{self.where}: {self.theta_key} {self.theta}")
        return rope.apply_scaling(plain, self.scaling, self.where)

    @property
    def stretch(self) -> float:
        """How many times the trained positions the scaling makes room for: a linear factor above 1, else 1."""
        factor = positive_number(self.scaling.get("factor"))
        return max(1.0, factor) if self.scaling["rope_type"] == "linear" and factor is not None else 1.0


def gguf_rope(fields: Fields, key: str) -> RopeSettings:
    """The settings of a GGUF file, in their present keys and in those before `rope.scaling` came.

    Raises UnsupportedModel for a number that makes no sense and for a factor on the scores.
    """
    fields.refuse_unless(f"{key}rope.scaling.attn_factor", (1.0,))
    factor = fields.values.get(f"{key}rope.scaling.factor", fields.values.get(f"{key}rope.scale_linear"))
    kind = fields.values.get(f"{key}rope.scaling.type", "linear")  # a factor without a type divides all the same
    if kind == "linear" and factor in (None, 0):
        kind = "none"
    theta_key = f"{key}rope.freq_base"
    theta = fields.number(theta_key, _DEFAULT_THETA)
    return RopeSettings(theta, {"rope_type": kind, "factor": factor}, fields.where, theta_key)


def hf_rope(fields: Fields) -> RopeSettings:
    """The settings of a config.json; raises UnsupportedModel, also when its two places for them disagree."""
    fields.refuse_unless("partial_rotary_factor", (1.0,))
    theta = fields.number("rope_theta", _DEFAULT_THETA)
    places = [place for place in ("rope_scaling", "rope_parameters") if fields.values.get(place)]
    if not places:
        return RopeSettings(theta, {"rope_type": "default"}, fields.where, "rope_theta")
    first, *others = (_stated(fields, place, theta) for place in places)
    if others and others[0] != first:
        raise UnsupportedModel(
            f"{fields.where}: rope_scaling and rope_parameters disagree: "
            f"{fields.values['rope_scaling']!r:.200} and {fields.values['rope_parameters']!r:.200}"
        )
    return first


def _stated(fields: Fields, place: str, theta: float) -> RopeSettings:
    """The settings in one of the two objects; `theta` is the base beside it."""
    value = fields.values[place]
    if not isinstance(value, dict):
        raise UnsupportedModel(f"{fields.where}: {place} is {value!r}, wanted an object")
    inner = Fields(value, f"{fields.where}: {place}")
    inner.refuse_unless("partial_rotary_factor", (1.0,))
    for key, entry in value.items():
        if isinstance(entry, dict):
            raise UnsupportedModel(f"{inner.where}: {key} is an object, wanted one scaling for all layers")
    kind = value.get("rope_type", value.get("type", "default"))
    if kind == "llama3":  # transformers 5 would take the outer number, transformers 4 the inner one
        fields.refuse_unless("original_max_position_embeddings", (value.get("original_max_position_embeddings"),))
    left_out = {"type", "rope_type", "rope_theta", "partial_rotary_factor"}
    scaling = {"rope_type": kind} | {key: entry for key, entry in value.items() if key not in left_out}
    return RopeSettings(inner.number("rope_theta", theta), scaling, fields.where, "rope_theta")
