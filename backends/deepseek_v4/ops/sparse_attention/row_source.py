"""Where the rows of a cache lie, as the constants and pointers that a kernel needs, and their loads.

Rows are read as two tiles: the un-rotated dims, padded to a power of two, and the rotated dims behind them.
Plain rows [P, R, D] of fp32 or bf16, or the split fp8 pages of ``rows.kv_fp8``.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from backends.deepseek_v4.rows.format import RowFormat
from backends.deepseek_v4.rows.kv_fp8 import BLOCK, Fp8KvCodec
from backends.deepseek_v4.rows.plain import PlainRows
from backends.deepseek_v4.rows.split_page import SplitRows
from specdec.errors import UnsupportedError

SCALE_BLOCK = tl.constexpr(BLOCK)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowSource:
    """A buffer as a kernel sees it.

    values         the buffer, flat addressing by element
    halves         an fp8 buffer's bytes as bf16, for the rotated dims; ``values`` again for plain rows
    rows_per_page  rows of a page
    page_bytes     bytes from one fp8 page to the next; 0 for plain rows
    """

    values: torch.Tensor
    halves: torch.Tensor
    rows_per_page: int
    page_bytes: int


def row_source(buffer: torch.Tensor, rows: RowFormat) -> RowSource:
    """The source of a contiguous buffer. Raises UnsupportedError for a format that no kernel reads."""
    assert buffer.is_contiguous(), "a cache buffer is contiguous"
    if isinstance(rows, PlainRows):
        return RowSource(values=buffer, halves=buffer, rows_per_page=rows.rows_per_page, page_bytes=0)
    if isinstance(rows, SplitRows) and isinstance(rows.codec, Fp8KvCodec):
        return RowSource(
            values=buffer,
            halves=buffer.view(torch.bfloat16),
            rows_per_page=rows.rows_per_page,
            page_bytes=rows.page_bytes,
        )
    raise UnsupportedError(
        f"no attention kernel reads rows of {type(rows).__name__}: allowed are plain and fp8 K/V rows"
    )


@triton.jit
def _fp8_tiles(
    values_ptr, halves_ptr, slots,
    NOPE: tl.constexpr, ROPE: tl.constexpr, NOPE_BLOCK: tl.constexpr, ROPE_BLOCK: tl.constexpr,
    ROWS_PER_PAGE: tl.constexpr, PAGE_BYTES: tl.constexpr,
):  # fmt: skip
    GROUPS: tl.constexpr = NOPE_BLOCK // SCALE_BLOCK
    RECORD: tl.constexpr = NOPE + 2 * ROPE
    real = slots >= 0
    page = tl.where(real, slots // ROWS_PER_PAGE, 0).to(tl.int64) * PAGE_BYTES
    row = tl.where(real, slots % ROWS_PER_PAGE, 0)
    record = page + row * RECORD
    group = tl.arange(0, GROUPS)
    inner = tl.arange(0, SCALE_BLOCK)
    present = real[:, None] & (group < NOPE // SCALE_BLOCK)[None, :]
    scale_at = page + ROWS_PER_PAGE * RECORD + row * (NOPE // SCALE_BLOCK + 1)
    exponents = tl.load(values_ptr + scale_at[:, None] + group[None, :], mask=present, other=0)
    scales = (exponents.to(tl.int32) << 23).to(tl.float32, bitcast=True)
    column = group[:, None] * SCALE_BLOCK + inner[None, :]
    codes = tl.load(values_ptr + record[:, None, None] + column[None, :, :], mask=present[:, :, None], other=0)
    nope = codes.to(tl.float8e4nv, bitcast=True).to(tl.float32) * scales[:, :, None]
    nope = tl.reshape(nope.to(tl.bfloat16), (slots.shape[0], NOPE_BLOCK))
    # Besides its meaning this keeps the compiler from decoding anew, byte by byte, in the layout of each product.
    nope = tl.where((tl.arange(0, NOPE_BLOCK) < NOPE)[None, :], nope, 0.0)
    dims = tl.arange(0, ROPE_BLOCK)
    # Records start at even bytes, so halves address them exactly.
    rope_at = halves_ptr + (page // 2 + row * (RECORD // 2) + NOPE // 2)[:, None] + dims[None, :]
    rope = tl.load(rope_at, mask=real[:, None] & (dims < ROPE)[None, :], other=0.0)
    return nope, rope


@triton.jit
def _plain_tiles(
    values_ptr, slots,
    NOPE: tl.constexpr, ROPE: tl.constexpr, NOPE_BLOCK: tl.constexpr, ROPE_BLOCK: tl.constexpr,
):  # fmt: skip
    real = slots >= 0
    start = tl.where(real, slots, 0).to(tl.int64) * (NOPE + ROPE)
    dims = tl.arange(0, NOPE_BLOCK)
    nope = tl.load(values_ptr + start[:, None] + dims[None, :], mask=real[:, None] & (dims < NOPE)[None, :], other=0.0)
    dims = tl.arange(0, ROPE_BLOCK)
    at = values_ptr + (start + NOPE)[:, None] + dims[None, :]
    rope = tl.load(at, mask=real[:, None] & (dims < ROPE)[None, :], other=0.0)
    return nope, rope


@triton.jit
def load_rows(
    values_ptr, halves_ptr, slots,
    NOPE: tl.constexpr, ROPE: tl.constexpr, NOPE_BLOCK: tl.constexpr, ROPE_BLOCK: tl.constexpr,
    ROWS_PER_PAGE: tl.constexpr, PAGE_BYTES: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Tiles [N, NOPE_BLOCK] and [N, ROPE_BLOCK] of ``DTYPE`` of the rows at ``slots`` (int32 [N]); zeros for -1."""
    if PAGE_BYTES > 0:
        nope, rope = _fp8_tiles(
            values_ptr, halves_ptr, slots, NOPE, ROPE, NOPE_BLOCK, ROPE_BLOCK, ROWS_PER_PAGE, PAGE_BYTES
        )
    else:
        nope, rope = _plain_tiles(values_ptr, slots, NOPE, ROPE, NOPE_BLOCK, ROPE_BLOCK)
    return nope.to(DTYPE), rope.to(DTYPE)
