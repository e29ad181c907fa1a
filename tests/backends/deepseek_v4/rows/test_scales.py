"""Block exponents against exact integer arithmetic, and the ue8m0 byte."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.deepseek_v4.rows.scales import (
    FP4_MAX,
    FP8_MAX,
    block_amax,
    e8m0_bytes,
    e8m0_values,
    power_of_two,
    scale_exponents,
    to_fp8,
)


def exact_exponent(amax: float, limit: float) -> int:
    """Smallest e with amax <= limit * 2^e; doubles hold every product exactly."""
    exponent = -160
    while amax > math.ldexp(limit, exponent):
        exponent += 1
    return exponent


@pytest.mark.parametrize("limit", [FP8_MAX, FP4_MAX])
def test_exponent_is_exact_at_and_around_every_power(limit):
    for k in range(-30, 118):
        edge = torch.tensor(math.ldexp(limit, k))
        above = torch.nextafter(edge, torch.tensor(float("inf")))
        below = torch.nextafter(edge, torch.tensor(0.0))
        got = scale_exponents(torch.stack([below, edge, above]), limit=limit)
        assert got.tolist() == [k, k, k + 1]


@settings(deadline=None, max_examples=200)
@given(st.floats(min_value=2.0**-100, max_value=2.0**127, width=32), st.sampled_from([FP8_MAX, FP4_MAX]))
def test_exponent_is_the_smallest_that_fits(amax, limit):
    assert scale_exponents(torch.tensor([amax]), limit=limit).item() == exact_exponent(amax, limit)


def test_power_of_two_is_exact_over_its_range():
    exponents = torch.arange(-126, 128, dtype=torch.int32)
    assert power_of_two(exponents).tolist() == [math.ldexp(1.0, e) for e in range(-126, 128)]


def test_ue8m0_bytes_read_back_as_their_powers():
    exponents = torch.arange(-127, 128, dtype=torch.int32)
    codes = e8m0_bytes(exponents)
    assert codes.tolist() == list(range(255))
    assert e8m0_values(codes).tolist() == [math.ldexp(1.0, e) for e in range(-127, 128)]
    assert e8m0_values(torch.tensor([255], dtype=torch.uint8)).isnan().all()


def test_amax_ignores_nan_and_bounds_infinity():
    blocks = torch.tensor([[1.0, float("nan"), -3.0], [float("-inf"), 0.0, 1.0], [float("nan")] * 3])
    assert block_amax(blocks).tolist() == [3.0, torch.finfo(torch.float32).max, 0.0]


def test_fp8_clamps_and_keeps_nan_and_the_sign_of_zero():
    values = torch.tensor([448.0, 449.0, 1e30, -1e30, float("inf"), -0.0, 0.0, float("nan")])
    codes = to_fp8(values).view(torch.uint8).tolist()
    assert codes[:7] == [0x7E, 0x7E, 0x7E, 0xFE, 0x7E, 0x80, 0x00]
    assert codes[7] in (0x7F, 0xFF)
