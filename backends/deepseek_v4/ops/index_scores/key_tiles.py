"""Loads of indexer keys by slot, decoded in registers: the formats of ``rows.index_fp8`` and ``rows.index_mxfp4``."""

import triton
import triton.language as tl

from backends.deepseek_v4.ops.device.index_rows import fp4_values
from backends.deepseek_v4.ops.device.row_writer import INDEX_FP8, INDEX_MXFP4
from backends.deepseek_v4.rows.index_fp8 import BLOCK as FP8_BLOCK
from backends.deepseek_v4.rows.index_mxfp4 import BLOCK as FP4_BLOCK

_FP8_BLOCK = tl.constexpr(FP8_BLOCK)
_FP4_BLOCK = tl.constexpr(FP4_BLOCK)


@triton.jit
def _plain_keys(keys_ptr, slots, DIM: tl.constexpr, DIM_BLOCK: tl.constexpr):
    dims = tl.arange(0, DIM_BLOCK)
    at = keys_ptr + tl.where(slots >= 0, slots, 0).to(tl.int64)[:, None] * DIM + dims[None, :]
    return tl.load(at, mask=(slots >= 0)[:, None] & (dims < DIM)[None, :], other=0.0)


@triton.jit
def _fp8_keys(keys_ptr, scales_ptr, slots, DIM: tl.constexpr, ROWS_PER_PAGE: tl.constexpr, PAGE_BYTES: tl.constexpr):
    BLOCKS: tl.constexpr = DIM // _FP8_BLOCK
    real = slots >= 0
    page = tl.where(real, slots // ROWS_PER_PAGE, 0).to(tl.int64)
    place = tl.where(real, slots % ROWS_PER_PAGE, 0)
    at = keys_ptr + (page * PAGE_BYTES + place * DIM)[:, None] + tl.arange(0, DIM)[None, :]
    codes = tl.load(at, mask=real[:, None], other=0)
    # Pages and their scales begin at multiples of 4 bytes.
    first = page * (PAGE_BYTES // 4) + ROWS_PER_PAGE * DIM // 4 + place * BLOCKS
    scales = tl.load(scales_ptr + first[:, None] + tl.arange(0, BLOCKS)[None, :], mask=real[:, None], other=0.0)
    values = tl.reshape(codes.to(tl.float8e4nv, bitcast=True).to(tl.float32), (slots.shape[0], BLOCKS, _FP8_BLOCK))
    return tl.reshape(values * scales[:, :, None], (slots.shape[0], DIM))


@triton.jit
def _mxfp4_keys(keys_ptr, slots, DIM: tl.constexpr, ROWS_PER_PAGE: tl.constexpr, PAGE_BYTES: tl.constexpr):
    BLOCKS: tl.constexpr = DIM // _FP4_BLOCK
    BYTES: tl.constexpr = DIM // 2
    real = slots >= 0
    page = tl.where(real, slots // ROWS_PER_PAGE, 0).to(tl.int64) * PAGE_BYTES
    place = tl.where(real, slots % ROWS_PER_PAGE, 0)
    at = keys_ptr + (page + place * BYTES)[:, None] + tl.arange(0, BYTES)[None, :]
    codes = tl.load(at, mask=real[:, None], other=0).to(tl.int32)
    first = page + ROWS_PER_PAGE * BYTES + place * BLOCKS
    exponents = tl.load(keys_ptr + first[:, None] + tl.arange(0, BLOCKS)[None, :], mask=real[:, None], other=0)
    scales = (exponents.to(tl.int32) << 23).to(tl.float32, bitcast=True)
    scales = tl.where(exponents == 255, float("nan"), scales)
    values = tl.reshape(tl.join(fp4_values(codes & 15), fp4_values(codes >> 4)), (slots.shape[0], BLOCKS, _FP4_BLOCK))
    return tl.reshape(values * scales[:, :, None], (slots.shape[0], DIM))


@triton.jit
def load_keys(
    keys_ptr, scales_ptr, slots, FORMAT: tl.constexpr, DIM: tl.constexpr, DIM_BLOCK: tl.constexpr,
    ROWS_PER_PAGE: tl.constexpr, PAGE_BYTES: tl.constexpr,
):  # fmt: skip
    """Keys [N, DIM_BLOCK] at ``slots`` (int32 [N]); zeros for -1. FORMAT is one of ``device.row_writer``'s.

    ``scales_ptr`` are the bytes of fp8 pages as fp32. Quantised keys have a power of two of dims, so DIM_BLOCK is DIM.
    """
    if FORMAT == INDEX_FP8:
        return _fp8_keys(keys_ptr, scales_ptr, slots, DIM, ROWS_PER_PAGE, PAGE_BYTES)
    elif FORMAT == INDEX_MXFP4:
        return _mxfp4_keys(keys_ptr, slots, DIM, ROWS_PER_PAGE, PAGE_BYTES)
    else:
        return _plain_keys(keys_ptr, slots, DIM, DIM_BLOCK)
