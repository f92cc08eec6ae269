"""GGUF files of the llama and qwen2 families: numbers, shapes and tensors that are accepted, and those refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sipd.errors import TensorMismatch, UnsupportedModel
from sipd.models.program import Attention, Buffer, Norm, Products, Select, Silu
from sipd.weights.tensor_table import QuantType
from tests.builders import ModelShape
from tests.checkpoints import SMOLLM2, SMOLLM2_TYPES, gguf_table, program_of

SHAPE = ModelShape()
BIASES = tuple(f"blk.{layer}.{role}.bias" for layer in range(2) for role in ("attn_q", "attn_k", "attn_v"))


def test_the_numbers_of_a_model_are_those_of_its_metadata() -> None:
    h = program_of(gguf_table(SMOLLM2, quant=QuantType.Q4_1, quant_by_role=SMOLLM2_TYPES)).hyperparameters
    assert (h.n_layers, h.d_model, h.n_heads, h.n_kv_heads, h.head_dim) == (30, 576, 9, 3, 64)
    assert (h.d_ff, h.vocab_size, h.context_length, h.n_rot) == (1536, 49152, 8192, 64)
    assert (h.q_width, h.kv_width) == (576, 192)
    assert h.rms_eps == 1e-5
    assert not h.is_neox


def test_a_block_is_two_norms_attention_and_a_gated_ffn() -> None:
    steps = program_of(gguf_table()).steps
    kinds = [type(step) for step in steps]
    block = [Norm, Products, Attention, Products, Norm, Products, Silu, Products]
    assert kinds == [*block, *block, Select, Norm, Products]
    products = [[product.buffer for product in step.products] for step in steps if isinstance(step, Products)]
    assert products[:4] == [[Buffer.Q, Buffer.K, Buffer.V], [Buffer.X], [Buffer.GATE, Buffer.UP], [Buffer.X]]
    assert products[-1] == [Buffer.LOGITS]


@pytest.mark.parametrize(
    "key",
    ["block_count", "embedding_length", "attention.head_count", "feed_forward_length", "context_length"],
)
@pytest.mark.parametrize("value", [0, -1, 2**31 - 1, 2**64 - 1, "4", True, 4.0, [4, 4], None])
def test_a_dimension_that_is_no_sensible_count_is_refused_by_its_key(key: str, value: object) -> None:
    with pytest.raises(UnsupportedModel, match=rf"tiny.gguf: llama\.{key} is .*wanted an integer"):
        program_of(gguf_table(metadata={f"llama.{key}": value}))


@pytest.mark.parametrize("value", [0, -2, 2**31 - 1, "2"])
def test_a_key_head_count_that_is_no_sensible_count_is_refused(value: object) -> None:
    with pytest.raises(UnsupportedModel, match="head_count_kv is"):
        program_of(gguf_table(metadata={"llama.attention.head_count_kv": value}))


def test_no_key_head_count_means_one_key_head_for_each_query_head() -> None:
    shape = replace(SHAPE, n_kv_heads=4)
    table = gguf_table(shape, metadata={"llama.attention.head_count_kv": None})
    assert program_of(table).hyperparameters.n_kv_heads == 4


def test_an_array_of_equal_key_head_counts_is_one_count() -> None:
    h = program_of(gguf_table(metadata={"llama.attention.head_count_kv": (2, 2)})).hyperparameters
    assert h.n_kv_heads == 2


@pytest.mark.parametrize("value", [(2, 4), (2,), (2, 2, 2), ()])
def test_key_head_counts_that_differ_or_miss_a_layer_are_refused(value: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedModel, match=rf"head_count_kv is an array of {len(value)} values, wanted 2 that are"):
        program_of(gguf_table(metadata={"llama.attention.head_count_kv": value}))


def test_an_array_of_key_head_counts_that_make_no_sense_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="head_count_kv is 0, wanted an integer"):
        program_of(gguf_table(metadata={"llama.attention.head_count_kv": (0, 0)}))


def test_query_heads_that_key_heads_do_not_divide_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="4 query heads are not a multiple of 3 key heads"):
        program_of(gguf_table(replace(SHAPE, n_kv_heads=3)))


@pytest.mark.parametrize("head_dim", [15, 258, 1024])
def test_a_head_dimension_that_kernels_cannot_run_is_refused(head_dim: int) -> None:
    with pytest.raises(UnsupportedModel, match=f"head dimension {head_dim}"):
        program_of(gguf_table(replace(SHAPE, head_dim=head_dim), metadata={"llama.rope.dimension_count": 8}))


@pytest.mark.parametrize("n_rot", [7, 18, 64])
def test_rotary_dimensions_that_do_not_fit_a_head_are_refused(n_rot: int) -> None:
    with pytest.raises(UnsupportedModel, match=f"{n_rot} rotary dimensions of a head of 16"):
        program_of(gguf_table(metadata={"llama.rope.dimension_count": n_rot}))


def test_a_part_of_a_head_may_be_rotated() -> None:
    h = program_of(gguf_table(metadata={"llama.rope.dimension_count": 8})).hyperparameters
    assert (h.n_rot, len(h.inverse_frequencies)) == (8, 4)


def test_values_of_another_width_than_keys_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="value_length is 32"):
        program_of(gguf_table(metadata={"llama.attention.value_length": 32}))


@pytest.mark.parametrize("value", [0.0, -1e-5, float("nan"), float("inf"), "small", None])
def test_an_epsilon_that_is_no_positive_number_is_refused(value: object) -> None:
    with pytest.raises(UnsupportedModel, match="layer_norm_rms_epsilon is"):
        program_of(gguf_table(metadata={"llama.attention.layer_norm_rms_epsilon": value}))


@pytest.mark.parametrize(
    ("key", "value"), [("expert_count", 8), ("attention.causal", False), ("rope.scaling.attn_factor", 1.5)]
)
def test_what_would_change_the_mathematics_is_refused_rather_than_ignored(key: str, value: object) -> None:
    with pytest.raises(UnsupportedModel, match=rf"llama\.{key} is {value}, which sipd does not compute"):
        program_of(gguf_table(metadata={f"llama.{key}": value}))


def test_attention_that_says_it_is_causal_runs() -> None:
    program_of(gguf_table(metadata={"llama.attention.causal": True}))


@pytest.mark.parametrize(("window", "context"), [(None, 512), (0, 512), (1024, 512), (512, 512), (100, 100)])
def test_the_context_ends_with_a_sliding_window(window: int | None, context: int) -> None:
    h = program_of(gguf_table(metadata={"llama.attention.sliding_window": window})).hyperparameters
    assert (h.context_length, h.longest_context) == (context, context)
    assert h.window == (window or None)


@pytest.mark.parametrize(
    "name",
    [
        "token_embd.weight",
        "output_norm.weight",
        "blk.0.attn_q.weight",
        "blk.1.ffn_down.weight",
        "blk.1.attn_norm.weight",
    ],
)
def test_a_missing_tensor_is_refused_by_name(name: str) -> None:
    with pytest.raises(TensorMismatch, match=rf"tiny\.gguf: tensor {name}: missing"):
        program_of(gguf_table(without=(name,)))


def test_a_tensor_that_nobody_takes_is_refused_by_name() -> None:
    with pytest.raises(TensorMismatch, match=r"1 tensors that this architecture does not use: blk\.0\.attn_q_norm"):
        program_of(gguf_table(extra={"blk.0.attn_q_norm.weight": (16,)}))


def test_a_long_list_of_left_over_tensors_is_cut() -> None:
    extra = {f"extra.{i}": (4,) for i in range(9)}
    with pytest.raises(TensorMismatch, match=r"9 tensors .*: extra\.0, extra\.1, .*extra\.4 and 4 more"):
        program_of(gguf_table(extra=extra))


def test_a_surplus_block_is_refused() -> None:
    with pytest.raises(TensorMismatch, match=r"9 tensors that this architecture does not use: blk\.2\.attn_k\.weight"):
        program_of(gguf_table(replace(SHAPE, n_layers=3), metadata={"llama.block_count": 2}))


def test_a_block_too_few_is_refused() -> None:
    with pytest.raises(TensorMismatch, match=r"tensor blk\.2\.attn_q\.weight: missing"):
        program_of(gguf_table(metadata={"llama.block_count": 3}))


@pytest.mark.parametrize(
    ("key", "value", "tensor"),
    [
        ("feed_forward_length", 95, "ffn_gate"),
        ("embedding_length", 128, "token_embd"),
        ("attention.head_count_kv", 4, "attn_k"),
        ("attention.key_length", 8, "attn_q"),
    ],
)
def test_a_width_that_is_not_the_tensors_is_refused_with_both_shapes(key: str, value: int, tensor: str) -> None:
    extra = {"llama.rope.dimension_count": 8}
    with pytest.raises(TensorMismatch, match=rf"tensor .*{tensor}\.weight: shape \(.*\), wanted \(.*\)"):
        program_of(gguf_table(metadata={f"llama.{key}": value} | extra))


@pytest.mark.parametrize("dims", [(64,), (64, 64, 1), (1, 64, 64)])
def test_a_matrix_with_another_number_of_dimensions_is_refused(dims: tuple[int, ...]) -> None:
    table = gguf_table(without=("blk.0.attn_q.weight",), extra={"blk.0.attn_q.weight": dims})
    with pytest.raises(TensorMismatch, match=r"attn_q\.weight: shape"):
        program_of(table)


def test_an_embedding_of_one_dimension_is_refused() -> None:
    table = gguf_table(without=("token_embd.weight",), extra={"token_embd.weight": (320,)})
    with pytest.raises(TensorMismatch, match=r"token_embd\.weight: shape"):
        program_of(table)


def test_rows_that_are_not_whole_blocks_are_refused() -> None:
    with pytest.raises(TensorMismatch, match="rows of 96 are not whole Q4_K blocks of 256"):
        program_of(gguf_table(quant_by_role={"ffn_down": QuantType.Q4_K}))


def test_a_quantised_norm_is_refused() -> None:
    table = gguf_table()
    name = "blk.0.attn_norm.weight"
    tensors = dict(table.tensors) | {name: replace(table.tensors[name], quant_type=QuantType.Q8_0)}
    with pytest.raises(UnsupportedModel, match=r"attn_norm.weight: a vector of type Q8_0"):
        program_of(replace(table, tensors=tensors))


def test_without_an_output_tensor_the_head_is_the_embedding() -> None:
    program = program_of(gguf_table(replace(SHAPE, is_tied=True)))
    assert program.is_tied
    assert program.head.name == "token_embd.weight"


def test_with_an_output_tensor_the_head_is_that() -> None:
    program = program_of(gguf_table())
    assert not program.is_tied
    assert program.head.name == "output.weight"


def test_llama_pairs_neighbours_and_qwen2_pairs_halves() -> None:
    assert not program_of(gguf_table()).hyperparameters.is_neox
    assert program_of(gguf_table(replace(SHAPE, arch="qwen2"))).hyperparameters.is_neox


def test_qwen2_has_biases_on_q_k_and_v() -> None:
    program = program_of(gguf_table(replace(SHAPE, arch="qwen2")))
    biases = [product.bias.name for step in program.product_steps() for product in step.products if product.bias]
    assert biases == list(BIASES)
    assert {tensor.name for tensor in program.small_tensors()} >= set(BIASES)


def test_a_bias_of_another_width_is_refused() -> None:
    table = gguf_table(replace(SHAPE, arch="qwen2"), without=(BIASES[0],), extra={BIASES[0]: (63,)})
    with pytest.raises(TensorMismatch, match=r"attn_q\.bias: shape \(63,\), wanted \(64,\)"):
        program_of(table)


@pytest.mark.parametrize("value", ["gpt2", "gemma3", "Llama", "", None, 7, ["llama"]])
def test_an_unknown_architecture_is_refused_and_the_known_ones_named(value: object) -> None:
    with pytest.raises(UnsupportedModel, match=r"architecture .* is not supported; wanted one of llama, qwen2"):
        program_of(gguf_table(metadata={"general.architecture": value}))


def test_dimensions_beyond_any_model_are_refused_before_anything_is_allocated() -> None:
    with pytest.raises(UnsupportedModel, match="beyond what sipd accepts"):
        program_of(gguf_table(metadata={"llama.feed_forward_length": 2**20}))


def test_rotary_tables_of_old_files_are_not_left_over() -> None:
    program_of(gguf_table(extra={"blk.0.attn_rot_embd": (16,), "blk.1.attn_rot_embd": (16,)}))
