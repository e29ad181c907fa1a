"""Cache rows as a contiguous matrix, in Triton: a program decodes a few rows; bound by the bytes it moves."""

import torch
import triton
import triton.language as tl

from backends.deepseek_v4.ops.sparse_attention.row_source import load_rows, row_source
from backends.deepseek_v4.rows.format import RowFormat
from backends.deepseek_v4.rows.kv_fp8 import Fp8KvCodec
from backends.deepseek_v4.rows.split_page import SplitRows

ROWS_PER_PROGRAM = 8
# Smallest tile of un-rotated dims: one block of the fp8 format; and of rotated ones.
LEAST_NOPE, LEAST_ROPE = 64, 16


@triton.jit(do_not_specialize=["num_rows"])
def _gather(
    values_ptr, halves_ptr, slots_ptr, out_ptr, num_rows,
    NOPE: tl.constexpr, ROPE: tl.constexpr, NOPE_BLOCK: tl.constexpr, ROPE_BLOCK: tl.constexpr,
    ROWS_PER_PAGE: tl.constexpr, PAGE_BYTES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < num_rows
    slots = tl.load(slots_ptr + row, mask=inside, other=-1)
    nope, rope = load_rows(
        values_ptr, halves_ptr, slots, NOPE, ROPE, NOPE_BLOCK, ROPE_BLOCK, ROWS_PER_PAGE, PAGE_BYTES,
        out_ptr.dtype.element_ty,
    )  # fmt: skip
    out_at = out_ptr + row[:, None].to(tl.int64) * (NOPE + ROPE)
    dims = tl.arange(0, NOPE_BLOCK)
    tl.store(out_at + dims[None, :], nope, mask=inside[:, None] & (dims < NOPE)[None, :])
    if ROPE > 0:
        dims = tl.arange(0, ROPE_BLOCK)
        tl.store(out_at + NOPE + dims[None, :], rope, mask=inside[:, None] & (dims < ROPE)[None, :])


def gather_rows(buffer: torch.Tensor, rows: RowFormat, slots_X: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """See the package; one launch."""
    source = row_source(buffer, rows)
    out = torch.empty(*slots_X.shape, rows.width, dtype=dtype, device=buffer.device)
    num_rows = slots_X.numel()
    if num_rows == 0:
        return out
    rope = rows.codec.rope_dim if isinstance(rows, SplitRows) and isinstance(rows.codec, Fp8KvCodec) else 0
    nope = rows.width - rope
    _gather[(triton.cdiv(num_rows, ROWS_PER_PROGRAM),)](
        source.values, source.halves, slots_X.contiguous(), out, num_rows,
        NOPE=nope, ROPE=rope, NOPE_BLOCK=max(LEAST_NOPE, triton.next_power_of_2(nope)),
        ROPE_BLOCK=max(LEAST_ROPE, triton.next_power_of_2(max(1, rope))),
        ROWS_PER_PAGE=source.rows_per_page, PAGE_BYTES=source.page_bytes, BLOCK=ROWS_PER_PROGRAM, num_warps=4,
    )  # fmt: skip
    return out
