"""Device functions for the indexer's keys and queries: Hadamard rotation, fp8 and MXFP4 quantisation, row writers.

Same bytes and values as ``rows.hadamard``, ``rows.index_fp8`` and ``rows.index_mxfp4``. Rows are blocks [ROWS, DIM] of
fp32; both numbers are powers of two.
"""

import triton
import triton.language as tl

from backends.deepseek_v4.ops.device.scales import (
    E8M0_NAN,
    FP4_EXPONENT,
    FP4_FRACTION,
    FP8_EXPONENT,
    FP8_FRACTION,
    e8m0_bytes,
    finite_magnitudes,
    power_of_two,
    round_to_bf16,
    scale_exponents,
    to_fp8,
)

_FP8_BLOCK = tl.constexpr(128)
# 448 * 2^-33, the smallest maximum of an fp8 block.
_FP8_FLOOR = tl.constexpr(5.21540641784668e-08)
_FP4_BLOCK = tl.constexpr(32)
_FP4_FLOOR = tl.constexpr(1e-4)


@triton.jit
def _hadamard_round(x, ROWS: tl.constexpr, DIM: tl.constexpr):
    """Sums and differences of neighbours; the index bit that was last becomes the first."""
    low, high = tl.split(tl.reshape(x, [ROWS, DIM // 2, 2]))
    return tl.reshape(tl.permute(tl.join(low + high, low - high), (0, 2, 1)), [ROWS, DIM])


@triton.jit
def hadamard_rows(x, ROWS: tl.constexpr, DIM: tl.constexpr, ROUNDS: tl.constexpr):
    """Orthonormal Walsh-Hadamard transform of each row; ROUNDS is log2 DIM."""
    for _ in tl.static_range(ROUNDS):
        x = _hadamard_round(x, ROWS, DIM)
    return x * (DIM**-0.5)


@triton.jit
def rotate_index_rows(x, ROWS: tl.constexpr, DIM: tl.constexpr, ROUNDS: tl.constexpr):
    """Round to bf16, rotate, round to bf16 again: what precedes every quantisation in the indexer."""
    return round_to_bf16(hadamard_rows(round_to_bf16(x), ROWS, DIM, ROUNDS))


@triton.jit
def fp8_index_parts(x, ROWS: tl.constexpr, DIM: tl.constexpr):
    """fp8 values [ROWS, DIM] and exponents [ROWS, DIM / 128] of rows that are rotated already."""
    blocks = tl.reshape(x, [ROWS, DIM // _FP8_BLOCK, _FP8_BLOCK])
    amax = tl.maximum(tl.max(finite_magnitudes(blocks), axis=2), _FP8_FLOOR)
    exponents = scale_exponents(amax, FP8_EXPONENT, FP8_FRACTION)
    return to_fp8(tl.reshape(blocks * power_of_two(-exponents)[:, :, None], [ROWS, DIM])), exponents


@triton.jit
def fp4_codes(x):
    """4-bit codes (int32) of values divided by their block scale; ties go towards zero, code 0 carries no sign."""
    size = tl.abs(x)
    codes = (size > 0.25).to(tl.int32) + (size > 0.75).to(tl.int32) + (size > 1.25).to(tl.int32)
    codes += (size > 1.75).to(tl.int32) + (size > 2.5).to(tl.int32) + (size > 3.5).to(tl.int32)
    codes += (size > 5.0).to(tl.int32)
    return tl.where((x < 0) & (codes > 0), codes + 8, codes)


@triton.jit
def fp4_values(codes):
    """fp32 values of 4-bit codes (int32): {0, .5, 1, 1.5, 2, 3, 4, 6}, bit 3 is the sign."""
    exponent = (codes >> 1) & 3
    mantissa = (codes & 1).to(tl.float32)
    size = tl.where(exponent == 0, 0.5 * mantissa, (1.0 + 0.5 * mantissa) * power_of_two(exponent - 1))
    return tl.where(codes >= 8, -size, size)


@triton.jit
def mxfp4_index_parts(x, ROWS: tl.constexpr, DIM: tl.constexpr):
    """Codes (int32 [ROWS, DIM]) and scale bytes (int32 [ROWS, DIM / 32]) of rows that are rotated already."""
    blocks = tl.reshape(x, [ROWS, DIM // _FP4_BLOCK, _FP4_BLOCK])
    amax = tl.maximum(tl.max(finite_magnitudes(blocks), axis=2), _FP4_FLOOR)
    exponents = scale_exponents(amax, FP4_EXPONENT, FP4_FRACTION)
    codes = fp4_codes(tl.reshape(blocks * power_of_two(-exponents)[:, :, None], [ROWS, DIM]))
    broken = tl.max((blocks != blocks).to(tl.int32), axis=2)
    return codes, tl.where(broken > 0, E8M0_NAN, e8m0_bytes(exponents))


@triton.jit
def fp8_index_query(x, ROWS: tl.constexpr, DIM: tl.constexpr, ROUNDS: tl.constexpr):
    """Queries (after rope) as fp8 keys meet them: rotated, quantised and dequantised, fp32 [ROWS, DIM]."""
    codes, exponents = fp8_index_parts(rotate_index_rows(x, ROWS, DIM, ROUNDS), ROWS, DIM)
    blocks = tl.reshape(codes.to(tl.float32), [ROWS, DIM // _FP8_BLOCK, _FP8_BLOCK])
    return tl.reshape(blocks * power_of_two(exponents)[:, :, None], [ROWS, DIM])


@triton.jit
def mxfp4_index_query(x, ROWS: tl.constexpr, DIM: tl.constexpr, ROUNDS: tl.constexpr):
    """Queries (after rope) as MXFP4 keys meet them: rotated, quantised and dequantised, fp32 [ROWS, DIM]."""
    codes, scales = mxfp4_index_parts(rotate_index_rows(x, ROWS, DIM, ROUNDS), ROWS, DIM)
    blocks = tl.reshape(fp4_values(codes), [ROWS, DIM // _FP4_BLOCK, _FP4_BLOCK])
    # Byte 255 becomes the bits of infinity here; only NaN inputs have it, and they must stay NaN.
    factor = tl.where(scales == E8M0_NAN, float("nan"), (scales << 23).to(tl.float32, bitcast=True))
    return tl.reshape(blocks * factor[:, :, None], [ROWS, DIM])


@triton.jit
def write_fp8_index_row(
    row, page_ptr, place, ROWS_PER_PAGE: tl.constexpr, DIM: tl.constexpr, ROUNDS: tl.constexpr
):  # fmt: skip
    """Rotate ``row`` (fp32 [DIM]) and store it as row ``place`` of a page, whose first byte is at ``page_ptr``.

    The page begins at a multiple of 4 bytes.
    """
    BLOCKS: tl.constexpr = DIM // _FP8_BLOCK
    rotated = rotate_index_rows(tl.reshape(row, [1, DIM]), 1, DIM, ROUNDS)
    codes, exponents = fp8_index_parts(rotated, 1, DIM)
    values = tl.reshape(codes.to(tl.uint8, bitcast=True), [DIM])
    tl.store(page_ptr + place * DIM + tl.arange(0, DIM), values)
    scales_ptr = (page_ptr + ROWS_PER_PAGE * DIM).to(tl.pointer_type(tl.float32)) + place * BLOCKS
    tl.store(scales_ptr + tl.arange(0, BLOCKS)[None, :], power_of_two(exponents))


@triton.jit
def write_mxfp4_index_row(
    row, page_ptr, place, ROWS_PER_PAGE: tl.constexpr, DIM: tl.constexpr, ROUNDS: tl.constexpr
):  # fmt: skip
    """Rotate ``row`` (fp32 [DIM]) and store it as row ``place`` of a page, whose first byte is at ``page_ptr``."""
    BLOCKS: tl.constexpr = DIM // _FP4_BLOCK
    rotated = rotate_index_rows(tl.reshape(row, [1, DIM]), 1, DIM, ROUNDS)
    codes, scales = mxfp4_index_parts(rotated, 1, DIM)
    even, odd = tl.split(tl.reshape(codes, [DIM // 2, 2]))
    tl.store(page_ptr + place * (DIM // 2) + tl.arange(0, DIM // 2), (even | (odd << 4)).to(tl.uint8))
    scales_ptr = page_ptr + ROWS_PER_PAGE * (DIM // 2) + place * BLOCKS
    tl.store(scales_ptr + tl.arange(0, BLOCKS)[None, :], scales.to(tl.uint8))
