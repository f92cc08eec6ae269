"""Hugging Face checkpoints of the llama, mistral and qwen2 families."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sipd.errors import TensorMismatch, UnsupportedModel
from tests.builders import ModelShape
from tests.checkpoints import hf_table, program_of

SHAPE = ModelShape()
MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
QWEN2 = replace(SHAPE, arch="qwen2")


def test_rotary_pairs_are_half_a_head_apart_and_all_of_it_is_rotated() -> None:
    h = program_of(hf_table()).hyperparameters
    assert h.is_neox
    assert (h.n_rot, h.head_dim) == (16, 16)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", 0),
        ("num_attention_heads", 0),
        ("num_attention_heads", None),
        ("num_key_value_heads", 0),
        ("num_hidden_layers", -1),
        ("intermediate_size", "96"),
        ("vocab_size", None),
        ("max_position_embeddings", 2**40),
        ("rms_norm_eps", 0),
        ("rms_norm_eps", True),
        ("rope_theta", -1.0),
        ("rope_theta", float("inf")),
        pytest.param("rope_theta", 10**400, id="rope_theta-10^400"),
    ],
)
def test_a_number_that_makes_no_sense_is_refused_by_its_key(key: str, value: object) -> None:
    with pytest.raises(UnsupportedModel, match=rf"config\.json: {key} is .*wanted"):
        program_of(hf_table(config={key: value}))


@pytest.mark.parametrize("value", ["gelu", "relu", "gelu_pytorch_tanh"])
def test_another_activation_than_silu_is_refused(value: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"hidden_act is '{value}'"):
        program_of(hf_table(config={"hidden_act": value}))


def test_weights_quantised_by_another_tool_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="quantization_config is"):
        program_of(hf_table(config={"quantization_config": {"quant_method": "gptq"}}))


def test_mistral_without_a_window_runs() -> None:
    program = program_of(hf_table(config=MISTRAL | {"sliding_window": None}))
    assert program.hyperparameters.n_layers == 2


def test_mistral_with_a_window_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="sliding_window is 4096, which sipd does not compute"):
        program_of(hf_table(config=MISTRAL | {"sliding_window": 4096}))


def test_qwen2_names_a_window_that_it_does_not_use() -> None:
    program_of(hf_table(QWEN2, config={"sliding_window": 32768, "use_sliding_window": False}))
    program_of(hf_table(QWEN2, config={"sliding_window": 32768}))


def test_qwen2_that_uses_its_window_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="sliding_window is 32768"):
        program_of(hf_table(QWEN2, config={"sliding_window": 32768, "use_sliding_window": True}))


@pytest.mark.parametrize("value", [["Gemma3ForCausalLM"], [], None, "LlamaForCausalLM", [7]])
def test_an_unknown_architecture_is_refused_and_the_known_ones_named(value: object) -> None:
    with pytest.raises(UnsupportedModel, match="is not supported; wanted one of LlamaForCausalLM, Mistral"):
        program_of(hf_table(config={"architectures": value}))


def test_a_tied_head_is_the_embedding() -> None:
    assert program_of(hf_table(replace(SHAPE, is_tied=True))).is_tied


def test_a_tied_checkpoint_may_carry_the_matrix_twice() -> None:
    table = hf_table(replace(SHAPE, is_tied=True), extra={"lm_head.weight": (320, 64)})
    assert program_of(table).is_tied


def test_an_untied_checkpoint_without_a_head_is_refused() -> None:
    with pytest.raises(TensorMismatch, match=r"lm_head\.weight: missing"):
        program_of(hf_table(without=("lm_head.weight",)))


def test_biases_are_taken_where_the_file_has_them() -> None:
    shape = replace(SHAPE, has_qkv_bias=True)
    program = program_of(hf_table(shape, extra={"model.layers.0.mlp.up_proj.bias": (96,), "lm_head.bias": (320,)}))
    biases = [product.bias.name for step in program.product_steps() for product in step.products if product.bias]
    assert "model.layers.1.self_attn.k_proj.bias" in biases
    assert "model.layers.0.mlp.up_proj.bias" in biases
    assert biases[-1] == "lm_head.bias"


def test_the_names_of_tensors_that_are_left_over_are_told() -> None:
    with pytest.raises(TensorMismatch, match=r"does not use: model\.layers\.0\.self_attn\.q_norm\.weight"):
        program_of(hf_table(extra={"model.layers.0.self_attn.q_norm.weight": (16,)}))


def test_frequencies_stored_by_old_versions_are_not_left_over() -> None:
    program_of(hf_table(extra={"model.layers.1.self_attn.rotary_emb.inv_freq": (8,)}))


@pytest.mark.parametrize("value", ["yes", 3, [1]])
def test_a_rope_scaling_that_is_no_object_is_refused(value: object) -> None:
    with pytest.raises(UnsupportedModel, match=r"rope_scaling is .*wanted an object"):
        program_of(hf_table(config={"rope_scaling": value}))


def test_the_base_may_stand_in_rope_parameters() -> None:
    plain = program_of(hf_table(config={"rope_theta": 5e5}))
    newer = program_of(hf_table(config={"rope_theta": None, "rope_parameters": {"rope_theta": 5e5}}))
    assert newer.hyperparameters.inverse_frequencies == plain.hyperparameters.inverse_frequencies


def test_scaling_in_rope_parameters_is_honoured() -> None:
    older = program_of(hf_table(config={"rope_scaling": {"type": "linear", "factor": 4.0}}))
    parameters = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    newer = program_of(hf_table(config={"rope_theta": None, "rope_parameters": parameters}))
    assert newer.hyperparameters.inverse_frequencies == older.hyperparameters.inverse_frequencies


@pytest.mark.parametrize("place", ["top", "rope_parameters"])
def test_a_partial_rotation_is_refused(place: str) -> None:
    config: dict[str, object] = {"partial_rotary_factor": 0.5}
    if place == "rope_parameters":
        config = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0} | config}
    with pytest.raises(UnsupportedModel, match=r"partial_rotary_factor is 0.5"):
        program_of(hf_table(config=config))
