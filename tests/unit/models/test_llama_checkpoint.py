"""Hugging Face checkpoints of the llama, mistral and qwen2 families."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sipd.errors import TensorMismatch, UnsupportedModel
from sipd.weights.tensor_table import Checkpoint
from tests.builders import ModelShape
from tests.checkpoints import hf_table, program_of

SHAPE = ModelShape()
MISTRAL: dict[str, object] = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
QWEN2 = replace(SHAPE, arch="qwen2")


def _with_null(table: Checkpoint, key: str) -> Checkpoint:
    """The table with `key` as null, which is not the same as missing."""
    return replace(table, metadata={**table.metadata, key: None})


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


LONG = replace(SHAPE, context_length=32768)


def test_mistral_whose_window_is_null_has_its_whole_context() -> None:
    h = program_of(_with_null(hf_table(LONG, config=MISTRAL), "sliding_window")).hyperparameters
    assert (h.context_length, h.longest_context, h.window) == (32768, 32768, None)


@pytest.mark.parametrize(
    ("config", "window"),
    [
        ({}, 4096),
        ({"sliding_window": 1024}, 1024),
        ({"sliding_window": 1024, "use_sliding_window": False}, 1024),
        ({"sliding_window": 65536}, 65536),
    ],
)
def test_the_context_of_mistral_ends_with_its_window(config: dict[str, object], window: int) -> None:
    h = program_of(hf_table(LONG, config=MISTRAL | config)).hyperparameters
    assert (h.context_length, h.longest_context, h.window) == (min(window, 32768), min(window, 32768), window)


def test_llama_has_no_window_whatever_an_old_configuration_says() -> None:
    h = program_of(hf_table(LONG, config={"sliding_window": 4096, "use_sliding_window": True})).hyperparameters
    assert (h.context_length, h.window) == (32768, None)


@pytest.mark.parametrize(
    ("config", "window"),
    [
        ({}, None),
        ({"use_sliding_window": False}, None),
        ({"use_sliding_window": True}, None),  # it begins at block 28 where nothing else is said
        ({"use_sliding_window": True, "max_window_layers": 2}, None),
        ({"use_sliding_window": True, "max_window_layers": 1}, 64),
        ({"use_sliding_window": True, "max_window_layers": 0}, 64),
        ({"use_sliding_window": True, "layer_types": ["full_attention", "full_attention"]}, None),
        ({"use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"]}, 64),
        ({"use_sliding_window": False, "layer_types": ["sliding_attention", "sliding_attention"]}, None),
    ],
)
def test_qwen2_has_a_window_where_one_of_its_blocks_uses_it(config: dict[str, object], window: int | None) -> None:
    h = program_of(hf_table(QWEN2, config={"sliding_window": 64} | config)).hyperparameters
    assert (h.context_length, h.window) == (window or 512, window)


@pytest.mark.parametrize("value", [0, -1, "4096", True])
def test_a_window_that_makes_no_sense_is_refused(value: object) -> None:
    with pytest.raises(UnsupportedModel, match=r"sliding_window is .*wanted an integer"):
        program_of(hf_table(config=MISTRAL | {"sliding_window": value}))


def test_attention_that_is_not_causal_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="is_causal is False, which sipd does not compute"):
        program_of(hf_table(config={"is_causal": False}))
    program_of(hf_table(config={"is_causal": True}))


@pytest.mark.parametrize(
    ("shape", "config", "context"),
    [(SHAPE, {}, 2048), (SHAPE, MISTRAL, 4096), (QWEN2, {}, 32768)],
    ids=["llama", "mistral", "qwen2"],
)
def test_missing_keys_mean_what_the_class_takes_for_them(
    shape: ModelShape, config: dict[str, object], context: int
) -> None:
    missing: dict[str, object] = {
        "rms_norm_eps": None,
        "max_position_embeddings": None,
        "hidden_act": None,
        "rope_theta": None,
    }
    h = program_of(hf_table(shape, config=config | missing)).hyperparameters
    assert (h.rms_eps, h.context_length) == (1e-6, context)


def test_missing_key_heads_are_the_query_heads_of_llama_and_eight_of_mistral() -> None:
    shape = replace(SHAPE, n_heads=16, n_kv_heads=8)
    no_key: dict[str, object] = {"num_key_value_heads": None}
    assert program_of(hf_table(shape, config=MISTRAL | no_key)).hyperparameters.n_kv_heads == 8
    equal = hf_table(replace(shape, n_kv_heads=16), config=no_key)
    assert program_of(equal).hyperparameters.n_kv_heads == 16
    null = _with_null(hf_table(replace(shape, n_kv_heads=16), config=MISTRAL), "num_key_value_heads")
    assert program_of(null).hyperparameters.n_kv_heads == 16


@pytest.mark.parametrize("value", [["Gemma3ForCausalLM"], [], None, "LlamaForCausalLM", [7]])
def test_an_unknown_architecture_is_refused_and_the_known_ones_named(value: object) -> None:
    with pytest.raises(UnsupportedModel, match="is not supported; wanted one of LlamaForCausalLM, Mistral"):
        program_of(hf_table(config={"architectures": value}))


def test_a_tied_head_is_the_embedding() -> None:
    assert program_of(hf_table(replace(SHAPE, is_tied=True))).is_tied


def test_a_head_in_a_checkpoint_that_ties_it_is_the_head() -> None:
    table = hf_table(replace(SHAPE, is_tied=True), extra={"lm_head.weight": (320, 64)})
    program = program_of(table)
    assert not program.is_tied
    assert program.head.name == "lm_head.weight"


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


@pytest.mark.parametrize(
    ("key", "name", "width"),
    [("attention_bias", "self_attn.v_proj.bias", 32), ("mlp_bias", "mlp.down_proj.bias", 64)],
)
@pytest.mark.parametrize("classes", [{}, MISTRAL], ids=["llama", "mistral"])
def test_biases_that_the_configuration_denies_are_refused(
    classes: dict[str, object], key: str, name: str, width: int
) -> None:
    table = hf_table(config=classes | {key: False}, extra={f"model.layers.1.{name}": (width,)})
    with pytest.raises(TensorMismatch, match=rf"config\.json: {key} is false, but the weights hold model.*{name}"):
        program_of(table)


def test_qwen2_has_its_biases_whatever_a_key_of_other_classes_says() -> None:
    program_of(hf_table(QWEN2, config={"attention_bias": False}))


def test_the_names_of_tensors_that_are_left_over_are_told() -> None:
    with pytest.raises(TensorMismatch, match=r"does not use: model\.layers\.0\.self_attn\.q_norm\.weight"):
        program_of(hf_table(extra={"model.layers.0.self_attn.q_norm.weight": (16,)}))


def test_frequencies_stored_by_old_versions_are_not_left_over() -> None:
    program_of(hf_table(extra={"model.layers.1.self_attn.rotary_emb.inv_freq": (8,)}))


@pytest.mark.parametrize("place", ["top", "rope_parameters"])
def test_a_partial_rotation_is_refused(place: str) -> None:
    config: dict[str, object] = {"partial_rotary_factor": 0.5}
    if place == "rope_parameters":
        config = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0} | config}
    with pytest.raises(UnsupportedModel, match=r"partial_rotary_factor is 0.5"):
        program_of(hf_table(config=config))
