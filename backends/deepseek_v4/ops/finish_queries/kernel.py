"""Attention queries in Triton: one program a head."""

import torch
import triton
import triton.language as tl

from backends.deepseek_v4.ops.device.norms import rms_factor, round_to
from backends.deepseek_v4.ops.device.parts import part_strides, sum_parts
from backends.deepseek_v4.ops.device.rotation import load_angles, rotate_row
from specdec.ops.early import EarlyKernel, wait_for_earlier


@EarlyKernel
@triton.jit(do_not_specialize=["part_stride", "token_stride"])
def _queries(
    parts_ptr, angles_ptr, q_ptr, part_stride, token_stride, eps,
    HEADS: tl.constexpr, DIM: tl.constexpr, PAIRS: tl.constexpr, BLOCK: tl.constexpr,
    UNIT: tl.constexpr, NUM_PARTS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait_for_earlier(EARLY)
    token, head = tl.program_id(0), tl.program_id(1)
    column = tl.arange(0, BLOCK)
    inside = column < DIM
    cos, sin = load_angles(angles_ptr + token.to(tl.int64) * (2 * PAIRS), DIM, PAIRS, BLOCK)
    row = sum_parts(parts_ptr, token, head * DIM + column, inside, part_stride, token_stride, UNIT, NUM_PARTS)
    row = round_to(row, q_ptr)
    row = round_to(row * rms_factor(row, DIM, eps), q_ptr)
    row = rotate_row(row, cos, sin, DIM, PAIRS, BLOCK, False)
    place = (token.to(tl.int64) * HEADS + head) * DIM + column
    tl.store(q_ptr + place, row.to(q_ptr.dtype.element_ty), mask=inside)


def finish_queries(
    parts_PTX: torch.Tensor,
    *,
    num_heads: int,
    head_dim: int,
    angles_T2R: torch.Tensor,
    eps: float,
    dtype: torch.dtype,
) -> torch.Tensor:
    """See ``finish_queries``."""
    num_tokens = parts_PTX.shape[1]
    assert angles_T2R.is_contiguous(), "angles of a token lie together"
    q_THD = torch.empty(num_tokens, num_heads, head_dim, dtype=dtype, device=parts_PTX.device)
    if num_tokens:
        strides = part_strides(parts_PTX)
        _queries[(num_tokens, num_heads)](
            parts_PTX, angles_T2R, q_THD, strides.part, strides.token, eps,
            HEADS=num_heads, DIM=head_dim, PAIRS=angles_T2R.shape[2], BLOCK=triton.next_power_of_2(head_dim),
            UNIT=strides.unit, NUM_PARTS=parts_PTX.shape[0], num_warps=2, enable_fp_fusion=False,
        )  # fmt: skip
    return q_THD
