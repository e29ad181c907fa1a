"""One device function that stores a row in any format of ``rows``, and what a kernel must be told of a format.

A kernel takes ``RowStore``'s fields as compile-time constants, except the page stride.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from backends.deepseek_v4.ops.device.fp8_rows import write_fp8_row
from backends.deepseek_v4.ops.device.index_rows import write_fp8_index_row, write_mxfp4_index_row
from backends.deepseek_v4.rows.format import RowFormat
from backends.deepseek_v4.rows.index_fp8 import Fp8IndexCodec
from backends.deepseek_v4.rows.index_mxfp4 import Mxfp4IndexCodec
from backends.deepseek_v4.rows.kv_fp8 import Fp8KvCodec
from backends.deepseek_v4.rows.plain import PlainRows
from backends.deepseek_v4.rows.split_page import SplitRows
from specdec.errors import UnsupportedError

PLAIN = tl.constexpr(0)
KV_FP8 = tl.constexpr(1)
INDEX_FP8 = tl.constexpr(2)
INDEX_MXFP4 = tl.constexpr(3)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowStore:
    """A row format as kernels see it.

    format         one of PLAIN, KV_FP8, INDEX_FP8, INDEX_MXFP4 (plain ints)
    width          values of a row
    rope           rotated values at its end that are kept apart (KV_FP8), else 0
    rows_per_page  rows of a page
    rounds         log2 of the width for the rotated formats, else 0
    """

    format: int
    width: int
    rope: int
    rows_per_page: int
    rounds: int


def row_store(rows: RowFormat) -> RowStore:
    """What kernels are told of ``rows``. Raises UnsupportedError for a format without a kernel, by name."""
    if isinstance(rows, PlainRows):
        return _store(PLAIN, rows)
    if isinstance(rows, SplitRows):
        codec = rows.codec
        if isinstance(codec, Fp8KvCodec):
            return _store(KV_FP8, rows, rope=codec.rope_dim)
        if isinstance(codec, Fp8IndexCodec):
            return _store(INDEX_FP8, rows, rounds=codec.dim.bit_length() - 1)
        if isinstance(codec, Mxfp4IndexCodec):
            return _store(INDEX_MXFP4, rows, rounds=codec.dim.bit_length() - 1)
        raise UnsupportedError(f"no kernel stores rows of {type(codec).__name__} (conf: target.cache_dtype)")
    raise UnsupportedError(f"no kernel stores rows of {type(rows).__name__} (conf: target.cache_dtype)")


def page_stride(buffer: torch.Tensor) -> int:
    """Elements between two pages of a buffer that holds its rows back to back."""
    assert buffer.stride(-1) == 1, "the values of a row lie together"
    assert buffer.dim() == 2 or buffer.stride(1) == buffer.shape[2], "the rows of a page lie together"
    return buffer.stride(0)


def _store(kind: tl.constexpr, rows: RowFormat, *, rope: int = 0, rounds: int = 0) -> RowStore:
    return RowStore(format=kind.value, width=rows.width, rope=rope, rows_per_page=rows.rows_per_page, rounds=rounds)


@triton.jit
def write_row(
    row, buffer_ptr, slot, page_stride,
    FORMAT: tl.constexpr, ROWS_PER_PAGE: tl.constexpr, WIDTH: tl.constexpr, ROPE: tl.constexpr,
    ROUNDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store ``row`` (fp32 [BLOCK], WIDTH values, already rotated) at ``slot``, an int32 scalar of 0 or more.

    BLOCK is the power of two from WIDTH on; values beyond WIDTH are ignored in plain rows and must be 0 otherwise.
    """
    page_ptr = buffer_ptr + (slot // ROWS_PER_PAGE).to(tl.int64) * page_stride
    place = slot % ROWS_PER_PAGE
    if FORMAT == PLAIN:
        column = tl.arange(0, BLOCK)
        tl.store(page_ptr + place * WIDTH + column, row.to(buffer_ptr.dtype.element_ty), mask=column < WIDTH)
    elif FORMAT == KV_FP8:
        write_fp8_row(row, page_ptr, place, ROWS_PER_PAGE, WIDTH, ROPE, BLOCK)
    elif FORMAT == INDEX_FP8:
        write_fp8_index_row(row, page_ptr, place, ROWS_PER_PAGE, WIDTH, ROUNDS)
    else:
        write_mxfp4_index_row(row, page_ptr, place, ROWS_PER_PAGE, WIDTH, ROUNDS)
