"""Quantised weight storage: exact scales, codes by hand, and idempotence."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.deepseek_v4.weights.storage import (
    FP4_MAGNITUDES,
    dequantize_fp4,
    dequantize_fp8_blocks,
    quantize_fp4,
    quantize_fp8_blocks,
    scale_exponents,
)


def test_scale_exponents_are_exact_just_above_a_power_of_two():
    for power in range(-20, 20):
        edge = torch.tensor(448.0) * 2.0**power
        above = torch.nextafter(edge, torch.tensor(float("inf")))
        assert scale_exponents(torch.stack((edge, above)), 448.0).tolist() == [power, power + 1]


def test_zero_blocks_take_the_lowest_scale_and_read_back_as_zero():
    values, scales = quantize_fp8_blocks(torch.zeros(130, 5))
    assert scales.view(torch.uint8).unique().tolist() == [0]
    assert dequantize_fp8_blocks(values, scales).abs().max() == 0
    packed, scales4 = quantize_fp4(torch.zeros(2, 32))
    assert dequantize_fp4(packed, scales4).abs().max() == 0


def test_fp4_codes_and_nibble_order_by_hand():
    row = torch.zeros(1, 32)
    row[0, :8] = torch.tensor(FP4_MAGNITUDES)
    row[0, 8:16] = -torch.tensor(FP4_MAGNITUDES)
    packed, scales = quantize_fp4(row)
    assert scales.view(torch.uint8).tolist() == [[127]]
    assert packed.view(torch.uint8)[0, :8].tolist() == [0x10, 0x32, 0x54, 0x76, 0x90, 0xBA, 0xDC, 0xFE]
    assert torch.equal(dequantize_fp4(packed, scales), row)


@pytest.mark.parametrize("shape", [(1, 1), (128, 128), (129, 127), (300, 257)])
def test_fp8_blocks_read_back_within_the_format_and_are_idempotent(shape):
    weight = torch.randn(shape) * 10 ** torch.randint(-6, 6, (shape[0], 1))
    values, scales = quantize_fp8_blocks(weight)
    assert scales.shape == ((shape[0] + 127) // 128, (shape[1] + 127) // 128)
    back = dequantize_fp8_blocks(values, scales)
    blocks = scales.view(torch.uint8).int() - 127
    step = torch.ldexp(torch.ones_like(blocks, dtype=torch.float32), blocks)
    step = step.repeat_interleave(128, 0).repeat_interleave(128, 1)[: shape[0], : shape[1]]
    assert torch.all((back - weight).abs() <= torch.maximum(weight.abs() / 16, step * 2.0**-10))
    assert torch.equal(dequantize_fp8_blocks(*quantize_fp8_blocks(back)), back)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 4), st.integers(1, 5), st.floats(1e-6, 1e6))
def test_fp4_reads_back_the_nearest_code_and_is_idempotent(rows, blocks, size):
    weight = torch.randn(rows, 32 * blocks) * size
    packed, scales = quantize_fp4(weight)
    assert packed.shape == (rows, 16 * blocks) and scales.shape == (rows, blocks)
    back = dequantize_fp4(packed, scales)
    amax = weight.unflatten(-1, (-1, 32)).abs().amax(-1, keepdim=True)
    error = (back - weight).unflatten(-1, (-1, 32)).abs()
    assert torch.all(error <= amax / 3 + 1e-12)
    assert torch.equal(dequantize_fp4(*quantize_fp4(back)), back)
