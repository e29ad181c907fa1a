"""The indexer's queries in Triton: one program a token and few heads."""

import torch
import triton
import triton.language as tl

from backends.deepseek_v4.ops.device.index_rows import fp8_index_query, mxfp4_index_query
from backends.deepseek_v4.ops.device.norms import round_to
from backends.deepseek_v4.ops.device.parts import part_strides, sum_parts
from backends.deepseek_v4.ops.device.rotation import load_angles, rotate_rows
from backends.deepseek_v4.ops.device.row_writer import INDEX_FP8, INDEX_MXFP4, row_store
from backends.deepseek_v4.rows.format import IndexRowFormat
from specdec.ops.early import EarlyKernel, wait_for_earlier

HEADS_PER_PROGRAM = 4


@EarlyKernel
@triton.jit(do_not_specialize=["part_stride", "token_stride"])
def _queries(
    parts_ptr, angles_ptr, q_ptr, part_stride, token_stride,
    HEADS: tl.constexpr, DIM: tl.constexpr, PAIRS: tl.constexpr, NUM: tl.constexpr, BLOCK: tl.constexpr,
    FORMAT: tl.constexpr, ROUNDS: tl.constexpr, UNIT: tl.constexpr, NUM_PARTS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait_for_earlier(EARLY)
    token = tl.program_id(0)
    heads = tl.program_id(1) * NUM + tl.arange(0, NUM)
    dims = tl.arange(0, BLOCK)
    inside = (heads < HEADS)[:, None] & (dims < DIM)[None, :]
    columns = heads[:, None] * DIM + dims[None, :]
    cos, sin = load_angles(angles_ptr + token.to(tl.int64) * (2 * PAIRS), DIM, PAIRS, BLOCK)
    q = sum_parts(parts_ptr, token, columns, inside, part_stride, token_stride, UNIT, NUM_PARTS)
    q = rotate_rows(round_to(q, q_ptr), cos, sin, NUM, DIM, PAIRS, BLOCK, False)
    if FORMAT == INDEX_FP8:
        q = fp8_index_query(round_to(q, q_ptr), NUM, DIM, ROUNDS)
    elif FORMAT == INDEX_MXFP4:
        q = mxfp4_index_query(round_to(q, q_ptr), NUM, DIM, ROUNDS)
    place = token.to(tl.int64) * (HEADS * DIM) + columns
    tl.store(q_ptr + place, q.to(q_ptr.dtype.element_ty), mask=inside)


def index_queries(
    parts_PTX: torch.Tensor,
    *,
    num_heads: int,
    head_dim: int,
    angles_T2R: torch.Tensor,
    rows: IndexRowFormat,
    dtype: torch.dtype,
) -> torch.Tensor:
    """See the operator."""
    num_tokens = parts_PTX.shape[1]
    assert angles_T2R.is_contiguous(), "angles of a token lie together"
    q_TJD = torch.empty(num_tokens, num_heads, head_dim, dtype=dtype, device=parts_PTX.device)
    if num_tokens:
        strides, store = part_strides(parts_PTX), row_store(rows)
        _queries[(num_tokens, triton.cdiv(num_heads, HEADS_PER_PROGRAM))](
            parts_PTX, angles_T2R, q_TJD, strides.part, strides.token,
            HEADS=num_heads, DIM=head_dim, PAIRS=angles_T2R.shape[2], NUM=HEADS_PER_PROGRAM,
            BLOCK=triton.next_power_of_2(head_dim), FORMAT=store.format, ROUNDS=store.rounds,
            UNIT=strides.unit, NUM_PARTS=parts_PTX.shape[0], num_warps=2, enable_fp_fusion=False,
        )  # fmt: skip
    return q_TJD
