"""The indexer's scores through DeepGEMM's paged logits: queries as fp8 codes, their scale in the head weights."""

import torch
import triton
import triton.language as tl

from backends.deepseek_v4.cache_groups import AttentionKind
from backends.deepseek_v4.ops.device.scales import (
    FP8_EXPONENT,
    FP8_FRACTION,
    finite_magnitudes,
    power_of_two,
    scale_exponents,
    to_fp8,
)
from backends.deepseek_v4.pass_values import PassIndices
from backends.deepseek_v4.rows.format import IndexRowFormat
from backends.vendor import deep_gemm
from specdec.api import GroupTable

# 448 * 2^-33, as for keys.
_AMAX_FLOOR = tl.constexpr(5.21540641784668e-08)


@triton.jit
def _prepare(
    q_ptr, weights_ptr, table_ptr, reqs_ptr, codes_ptr, scaled_ptr, pages_ptr,
    weight_stride, table_stride, num_pages, HEADS: tl.constexpr, DIM: tl.constexpr, PAGES_BLOCK: tl.constexpr,
):  # fmt: skip
    """fp8 codes of a token's queries, its weights times their scales, and its row of the block table."""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.arange(0, HEADS)
    at = (token * HEADS + heads[:, None]) * DIM + tl.arange(0, DIM)[None, :]
    q = tl.load(q_ptr + at).to(tl.float32)
    amax = tl.maximum(tl.max(finite_magnitudes(q), axis=1), _AMAX_FLOOR)
    # Queries are fp8 values times a power of two already, so dividing by the smallest that fits loses nothing.
    exponents = scale_exponents(amax, FP8_EXPONENT, FP8_FRACTION)
    tl.store(codes_ptr + at, to_fp8(q * power_of_two(-exponents)[:, None]))
    weights = tl.load(weights_ptr + token * weight_stride + heads)
    tl.store(scaled_ptr + token * HEADS + heads, weights * power_of_two(exponents))
    req = tl.load(reqs_ptr + token).to(tl.int64)
    columns = tl.arange(0, PAGES_BLOCK)
    pages = tl.load(table_ptr + req * table_stride + columns, mask=columns < num_pages, other=0)
    # Missing pages lie beyond what the token sees; page 0 exists for sure.
    tl.store(pages_ptr + token * num_pages + columns, tl.maximum(pages, 0), mask=columns < num_pages)


def index_scores(
    q_TJD: torch.Tensor,
    weights_TJ: torch.Tensor,
    keys: torch.Tensor,
    rows: IndexRowFormat,
    table: GroupTable,
    indices: PassIndices,
    *,
    num_columns: int,
) -> torch.Tensor:
    """See the operator."""
    num_tokens, num_heads, dim = q_TJD.shape
    assert q_TJD.is_contiguous() and weights_TJ.stride(1) == 1, "contiguous operands"
    device = q_TJD.device
    if num_tokens == 0:
        return torch.empty(0, num_columns, dtype=torch.float32, device=device)
    num_pages = table.pages_BC.shape[1]
    codes_TJD = torch.empty(num_tokens, num_heads, dim, dtype=torch.float8_e4m3fn, device=device)
    scaled_TJ = torch.empty(num_tokens, num_heads, dtype=torch.float32, device=device)
    pages_TC = torch.empty(num_tokens, num_pages, dtype=torch.int32, device=device)
    _prepare[(num_tokens,)](
        q_TJD, weights_TJ, table.pages_BC, indices.reqs_T, codes_TJD, scaled_TJ, pages_TC,
        weights_TJ.stride(0), table.pages_BC.stride(0), num_pages,
        HEADS=num_heads, DIM=dim, PAGES_BLOCK=triton.next_power_of_2(num_pages), num_warps=4,
    )  # fmt: skip
    return deep_gemm.paged_logits(
        codes_TJD,
        keys.view(keys.shape[0], rows.rows_per_page, 1, rows.row_bytes),
        scaled_TJ,
        indices.visible[AttentionKind.CSA],
        pages_TC,
        num_columns=num_columns,
    )
