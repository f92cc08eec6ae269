"""Matrix products against the NumPy twin: a row's bits do not depend on rows, panels, packing or instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sipd.kernels import reference, reference_quants
from sipd.weights.tensor_table import QuantType
from tests.unit.kernels.kernel_calls import (
    BLOCK_TYPES,
    F32,
    FLOAT_TYPES,
    ISAS,
    LIBRARY,
    PACKED_TYPES,
    PANEL,
    U8,
    Table,
    activations,
    assert_same_bits,
    random_weights,
)

ROW_COUNTS = (1, 2, 3, 4, 5, 7, 8, 9, 16, 33)
FORMS = [(t, False) for t in QuantType] + [(t, True) for t in PACKED_TYPES]
FORM_IDS = [f"{t.name}{'-packed' if packed else ''}" for t, packed in FORMS]


def widths(quant_type: QuantType) -> tuple[int, ...]:
    """Inputs of one and of several blocks, of an odd number of them, and for float types of any length."""
    if quant_type in FLOAT_TYPES:
        return (8, 16, 40, 100, 576)
    return (256, 768, 2304) if quant_type.block_size == 256 else (32, 96, 576, 1536)


def twin(quant_type: QuantType, weights: U8, x: F32) -> F32:
    if quant_type in FLOAT_TYPES:
        return reference.matmul_floats(quant_type, weights, x)
    return reference.matmul_blocks(quant_type, weights, reference_quants.quantize(x))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("quant_type", "packed"), FORMS, ids=FORM_IDS)
def test_products_equal_the_twin_for_every_number_of_rows(isa: str, quant_type: QuantType, *, packed: bool) -> None:
    for n_in in widths(quant_type):
        generator = np.random.default_rng(n_in)
        weights = random_weights(generator, quant_type, 37, n_in)
        x = activations(generator, max(ROW_COUNTS), n_in)
        wanted = twin(quant_type, weights, x)
        for n_rows in ROW_COUNTS:
            assert_same_bits(Table(isa).matmul(quant_type, weights, x[:n_rows], packed=packed), wanted[:n_rows])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("quant_type", "packed"), FORMS, ids=FORM_IDS)
def test_any_number_of_outputs_is_computed(isa: str, quant_type: QuantType, *, packed: bool) -> None:
    n_in = widths(quant_type)[1]
    generator = np.random.default_rng(n_in)
    weights = random_weights(generator, quant_type, 65, n_in)
    x = activations(generator, 6, n_in)
    wanted = twin(quant_type, weights, x)
    for n_out in (1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 48, 65):
        for n_rows in (1, 6):
            found = Table(isa).matmul(quant_type, weights[:n_out], x[:n_rows], packed=packed)
            assert_same_bits(found, wanted[:n_rows, :n_out])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("quant_type", "packed"), FORMS, ids=FORM_IDS)
def test_a_bias_is_added_before_the_residual(isa: str, quant_type: QuantType, *, packed: bool) -> None:
    n_in = widths(quant_type)[0]
    generator = np.random.default_rng(1)
    weights = random_weights(generator, quant_type, 43, n_in)
    bias, onto = generator.standard_normal(43, np.float32), generator.standard_normal((9, 43), np.float32)
    x = activations(generator, 9, n_in)
    plain = twin(quant_type, weights, x)
    for n_rows in (1, 3, 9):
        rows = slice(0, n_rows)
        found = Table(isa).matmul(quant_type, weights, x[rows], packed=packed, bias=bias)
        assert_same_bits(found, plain[rows] + bias)
        found = Table(isa).matmul(quant_type, weights, x[rows], packed=packed, bias=bias, onto=onto[rows])
        assert_same_bits(found, onto[rows] + (plain[rows] + bias))


@given(st.data())
@settings(max_examples=120, deadline=None, derandomize=True)
def test_rows_panels_and_splits_never_change_a_bit(data: st.DataObject) -> None:
    quant_type, packed = data.draw(st.sampled_from(FORMS))
    isa = data.draw(st.sampled_from(ISAS))
    n_in = data.draw(st.sampled_from(widths(quant_type)))
    n_out = data.draw(st.integers(1, 150))
    n_panels = -(-n_out // PANEL)
    cuts = tuple(sorted(data.draw(st.sets(st.integers(1, n_panels), max_size=4)) - {n_panels}))
    generator = np.random.default_rng(data.draw(st.integers(0, 1000)))
    weights = random_weights(generator, quant_type, n_out, n_in)
    x = activations(generator, data.draw(st.integers(1, 40)), n_in)
    row = data.draw(st.integers(0, x.shape[0] - 1))
    table = Table(isa)
    found = table.matmul(quant_type, weights, x, packed=packed, cuts=cuts)
    assert_same_bits(found[row : row + 1], table.matmul(quant_type, weights, x[row : row + 1]))
    assert_same_bits(found, twin(quant_type, weights, x))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("quant_type", BLOCK_TYPES)
def test_a_sweep_over_many_panels_equals_the_twin(isa: str, quant_type: QuantType) -> None:
    generator = np.random.default_rng(3)
    weights = random_weights(generator, quant_type, 600, 256)
    x = activations(generator, 11, 256)
    assert_same_bits(Table(isa).matmul(quant_type, weights, x), twin(quant_type, weights, x))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("quant_type", BLOCK_TYPES)
def test_extreme_quants_do_not_saturate(isa: str, quant_type: QuantType) -> None:
    """All bits set or cleared in the weights, the largest activations of either sign: the widest integer sums."""
    n_in = widths(quant_type)[1]
    one = np.frombuffer(np.float16(0.5).tobytes(), np.uint8)
    x = np.ones((6, n_in), np.float32)
    x[1], x[2, ::2], x[3, ::3], x[4, 16:] = -1, -1, -1, 0
    for fill in (0x00, 0xFF, 0x80, 0x7F, 0x0F, 0xF0, 0x81):
        weights = np.full((19, n_in // quant_type.block_size, quant_type.block_bytes), fill, np.uint8)
        if quant_type is QuantType.Q6_K:
            weights[:, :, 208:210] = one
        else:
            weights[:, :, 0:2] = one
            if quant_type in (QuantType.Q4_1, QuantType.Q5_1, QuantType.Q4_K, QuantType.Q5_K):
                weights[:, :, 2:4] = one
        flat = weights.reshape(19, -1)
        wanted = twin(quant_type, flat, x)
        for packed in {False, quant_type in PACKED_TYPES}:
            for n_rows in (1, 6):
                assert_same_bits(Table(isa).matmul(quant_type, flat, x[:n_rows], packed=packed), wanted[:n_rows])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("quant_type", BLOCK_TYPES)
def test_an_activation_that_is_not_a_number_makes_every_output_so(isa: str, quant_type: QuantType) -> None:
    n_in = widths(quant_type)[0]
    generator = np.random.default_rng(5)
    weights = random_weights(generator, quant_type, 20, n_in)
    x = activations(generator, 8, n_in)
    x[3] = np.nan
    found = Table(isa).matmul(quant_type, weights, x)
    assert np.isnan(found[3]).all()
    assert np.isfinite(np.delete(found, 3, axis=0)).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("quant_type", PACKED_TYPES)
def test_extracting_a_row_undoes_repacking(isa: str, quant_type: QuantType) -> None:
    for n_in in widths(quant_type)[:3]:
        weights = random_weights(np.random.default_rng(n_in), quant_type, 3 * PANEL, n_in)
        packed = Table(isa).repack(quant_type, weights, n_in)
        assert not np.array_equal(packed, weights)
        for row in range(weights.shape[0]):
            np.testing.assert_array_equal(Table(isa).extract_row(quant_type, packed, n_in, row), weights[row])


@pytest.mark.parametrize("quant_type", list(QuantType))
def test_dequantised_rows_equal_the_twin(quant_type: QuantType) -> None:
    n_in = widths(quant_type)[-1]
    weights = random_weights(np.random.default_rng(2), quant_type, 5, n_in)
    found = np.empty((5, n_in), np.float32)
    for row in range(5):
        LIBRARY.sipd_dequantize_row(quant_type.type_id, weights[row].ctypes.data, n_in, found[row].ctypes.data)
    assert_same_bits(found, reference_quants.dequantize(quant_type, weights))


@pytest.mark.parametrize("quant_type", list(QuantType))
def test_dequantised_rows_equal_those_of_the_gguf_package(quant_type: QuantType) -> None:
    quants = pytest.importorskip("gguf.quants")
    weights = random_weights(np.random.default_rng(4), quant_type, 6, widths(quant_type)[-1])
    wanted = quants.dequantize(weights, quants.GGMLQuantizationType[quant_type.name])
    np.testing.assert_array_equal(reference_quants.dequantize(quant_type, weights), wanted)


@pytest.mark.parametrize("quant_type", BLOCK_TYPES)
def test_a_block_product_is_close_to_that_of_the_dequantised_weights(quant_type: QuantType) -> None:
    n_in = widths(quant_type)[-1]
    generator = np.random.default_rng(6)
    weights = random_weights(generator, quant_type, 40, n_in)
    x = generator.standard_normal((4, n_in), np.float32)
    wanted = x.astype(np.float64) @ reference_quants.dequantize(quant_type, weights).astype(np.float64).T
    # eight-bit activations: an error of about 1/400 of the largest, averaged over the row
    assert np.abs(twin(quant_type, weights, x) - wanted).max() < 0.05


@pytest.mark.parametrize("quant_type", FLOAT_TYPES)
def test_a_float_product_is_close_to_that_in_double_precision(quant_type: QuantType) -> None:
    generator = np.random.default_rng(6)
    weights = random_weights(generator, quant_type, 40, 576)
    x = generator.standard_normal((4, 576), np.float32)
    wanted = x.astype(np.float64) @ reference_quants.dequantize(quant_type, weights).astype(np.float64).T
    np.testing.assert_allclose(twin(quant_type, weights, x), wanted, atol=1e-5)
