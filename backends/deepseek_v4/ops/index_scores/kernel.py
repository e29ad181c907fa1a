"""The indexer's scores in Triton: one program per token and block of rows.

Programs of tokens that need no scores and of blocks that their token does not see leave at once.
"""

import torch
import triton
import triton.language as tl

from backends.deepseek_v4.cache_groups import AttentionKind
from backends.deepseek_v4.ops.device.pages import page_slots
from backends.deepseek_v4.ops.device.row_writer import INDEX_FP8, row_store
from backends.deepseek_v4.ops.index_scores.key_tiles import load_keys
from backends.deepseek_v4.pass_values import PassIndices
from backends.deepseek_v4.rows.format import IndexRowFormat
from specdec.api import GroupTable
from specdec.ops.early import EarlyKernel, begin

ROWS_PER_PROGRAM = 64
# float32 products run on the ordinary cores, which hold both operands in registers.
ROWS_PER_PROGRAM_FP32 = 32


@EarlyKernel
@triton.jit
def _scores(
    q_ptr, weights_ptr, keys_ptr, scales_ptr, visible_ptr, reqs_ptr, table_ptr, scores_ptr,
    num_columns, num_blocks, weight_stride, table_stride, table_columns,
    HEADS: tl.constexpr, DIM: tl.constexpr, HEAD_BLOCK: tl.constexpr, DIM_BLOCK: tl.constexpr, FORMAT: tl.constexpr,
    ROWS_PER_PAGE: tl.constexpr, PAGE_BYTES: tl.constexpr, TOPK: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    program = tl.program_id(0)
    token = (program // num_blocks).to(tl.int64)
    start = program % num_blocks * BLOCK
    visible = tl.load(visible_ptr + token)
    if (visible <= TOPK) | (start >= visible):
        return
    req = tl.load(reqs_ptr + token)
    columns = start + tl.arange(0, BLOCK)
    rows = tl.where(columns < visible, columns, -1)
    slots = page_slots(table_ptr, table_stride, table_columns, req, 0, rows, ROWS_PER_PAGE)
    heads = tl.arange(0, HEAD_BLOCK)
    dims = tl.arange(0, DIM_BLOCK)
    q_at = q_ptr + (token * HEADS + heads[:, None]) * DIM + dims[None, :]
    q = tl.load(q_at, mask=(heads < HEADS)[:, None] & (dims < DIM)[None, :], other=0.0)
    weights = tl.load(weights_ptr + token * weight_stride + heads, mask=heads < HEADS, other=0.0)
    keys = load_keys(keys_ptr, scales_ptr, slots, FORMAT, DIM, DIM_BLOCK, ROWS_PER_PAGE, PAGE_BYTES).to(q.dtype)
    products = tl.dot(keys, tl.trans(q), input_precision=PRECISION)
    # Not tl.maximum with 0, which would hide a NaN.
    products = tl.where(products < 0.0, 0.0, products)
    scores = tl.sum(products * weights[None, :], axis=1)
    tl.store(scores_ptr + token * num_columns + columns, scores, mask=columns < num_columns)


def index_scores(
    q_TJD: torch.Tensor,
    weights_TJ: torch.Tensor,
    keys: torch.Tensor,
    rows: IndexRowFormat,
    table: GroupTable,
    indices: PassIndices,
    *,
    topk: int,
    num_columns: int,
) -> torch.Tensor:
    """See the operator."""
    num_tokens, num_heads, dim = q_TJD.shape
    assert q_TJD.is_contiguous() and keys.is_contiguous() and weights_TJ.stride(1) == 1, "contiguous operands"
    scores_TC = torch.empty(num_tokens, num_columns, dtype=torch.float32, device=q_TJD.device)
    exact = q_TJD.dtype == torch.float32
    block = ROWS_PER_PROGRAM_FP32 if exact else ROWS_PER_PROGRAM
    num_blocks = triton.cdiv(num_columns, block)
    if num_tokens * num_blocks:
        row_format = row_store(rows).format
        _scores[(num_tokens * num_blocks,)](
            q_TJD, weights_TJ, keys, keys.view(torch.float32) if row_format == INDEX_FP8.value else keys,
            indices.visible[AttentionKind.CSA], indices.reqs_T, table.pages_BC, scores_TC,
            num_columns, num_blocks, weights_TJ.stride(0), table.pages_BC.stride(0), table.pages_BC.shape[1],
            HEADS=num_heads, DIM=dim, HEAD_BLOCK=max(16, triton.next_power_of_2(num_heads)),
            DIM_BLOCK=max(16, triton.next_power_of_2(dim)), FORMAT=row_format, ROWS_PER_PAGE=rows.rows_per_page,
            PAGE_BYTES=rows.page_bytes, TOPK=topk, BLOCK=block, PRECISION="ieee" if exact else "tf32", num_warps=4,
        )  # fmt: skip
    return scores_TC
