"""Device function that writes one K/V row in the bytes of ``rows.kv_fp8``; knows nothing of how the row came about."""

import triton
import triton.language as tl

from backends.deepseek_v4.ops.device.scales import (
    FP8_EXPONENT,
    FP8_FRACTION,
    e8m0_bytes,
    finite_magnitudes,
    power_of_two,
    round_to_bf16,
    scale_exponents,
    to_fp8,
)

_QUANT = tl.constexpr(64)
_AMAX_FLOOR = tl.constexpr(1e-4)


@triton.jit
def write_fp8_row(
    row, page_ptr, place, ROWS_PER_PAGE: tl.constexpr, DIM: tl.constexpr, ROPE: tl.constexpr, BLOCK: tl.constexpr
):
    """Store ``row`` (fp32 [BLOCK], DIM values of which the last ROPE are rotated) as row ``place`` of a page.

    ``page_ptr`` is the page's first byte (uint8, at an even address); DIM - ROPE is a positive multiple of 64 and
    BLOCK the power of two from DIM on. Everything is rounded to bf16 before a block's maximum is taken.
    """
    NOPE: tl.constexpr = DIM - ROPE
    VALUES: tl.constexpr = NOPE + 2 * ROPE
    SCALES: tl.constexpr = NOPE // _QUANT + 1
    BLOCKS: tl.constexpr = BLOCK // _QUANT
    blocks = tl.reshape(round_to_bf16(row), [BLOCKS, _QUANT])
    amax = tl.max(finite_magnitudes(blocks), axis=1)
    exponents = scale_exponents(tl.maximum(amax, _AMAX_FLOOR), FP8_EXPONENT, FP8_FRACTION)
    codes = to_fp8(tl.reshape(blocks * power_of_two(-exponents)[:, None], [BLOCK])).to(tl.uint8, bitcast=True)
    column = tl.arange(0, BLOCK)
    values_ptr = page_ptr + place * VALUES
    tl.store(values_ptr + column, codes, mask=column < NOPE)
    rope_ptr = (values_ptr + NOPE).to(tl.pointer_type(tl.bfloat16))
    tl.store(rope_ptr + (column - NOPE), row.to(tl.bfloat16), mask=(column >= NOPE) & (column < DIM))
    block = tl.arange(0, BLOCKS)
    scales = tl.where(block < NOPE // _QUANT, e8m0_bytes(exponents), 0)
    tl.store(page_ptr + ROWS_PER_PAGE * VALUES + place * SCALES + block, scales.to(tl.uint8), mask=block < SCALES)
