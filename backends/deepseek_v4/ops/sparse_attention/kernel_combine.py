"""The end of sparse attention in Triton: merges partial results, applies the sink, undoes the rotation.

One program per token and head.
"""

import torch
import triton
import triton.language as tl

from backends.deepseek_v4.ops.device.rotation import load_angles, rotate_row
from specdec.ops.early import EarlyKernel, begin

LOG2_E = tl.constexpr(1.4426950408889634)
# Stands in for -inf where a token has neither a key nor a sink.
LOWEST = tl.constexpr(-1e30)


@EarlyKernel
@triton.jit
def _combine(
    parts_ptr, lse_ptr, sinks_ptr, angles_ptr, out_ptr, num_heads,
    NOPE: tl.constexpr, ROPE: tl.constexpr, BLOCK_D: tl.constexpr, SPLITS: tl.constexpr, BLOCK_S: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    program = tl.program_id(0)
    token = (program // num_heads).to(tl.int64)
    head = program % num_heads
    split = tl.arange(0, BLOCK_S)
    line = (token * SPLITS + split) * num_heads + head
    lse = tl.load(lse_ptr + line, mask=split < SPLITS, other=float("-inf"))
    sink = tl.load(sinks_ptr + head) * LOG2_E
    top = tl.maximum(tl.maximum(tl.max(lse, axis=0), sink), LOWEST)
    weights = tl.exp2(lse - top)
    total = tl.sum(weights, axis=0) + tl.exp2(sink - top)
    weights = weights / tl.where(total > 0, total, 1.0)
    dims = tl.arange(0, BLOCK_D)
    # A share without keys has stored no result.
    stored = (lse > float("-inf"))[:, None] & (dims < NOPE + ROPE)[None, :]
    parts = tl.load(parts_ptr + line[:, None] * (NOPE + ROPE) + dims[None, :], mask=stored, other=0.0)
    row = tl.sum(parts * weights[:, None], axis=0)
    cos, sin = load_angles(angles_ptr + token * ROPE, NOPE + ROPE, ROPE // 2, BLOCK_D)
    row = rotate_row(row, cos, sin, NOPE + ROPE, ROPE // 2, BLOCK_D, True)
    at = out_ptr + (token * num_heads + head) * (NOPE + ROPE) + dims
    tl.store(at, row.to(out_ptr.dtype.element_ty), mask=dims < NOPE + ROPE)


@EarlyKernel
@triton.jit
def _unrotate(
    o_ptr, angles_ptr, out_ptr, num_heads, stride_t, stride_h,
    NOPE: tl.constexpr, ROPE: tl.constexpr, BLOCK_D: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    program = tl.program_id(0)
    token = (program // num_heads).to(tl.int64)
    head = program % num_heads
    dims = tl.arange(0, BLOCK_D)
    inside = dims < NOPE + ROPE
    row = tl.load(o_ptr + token * stride_t + head * stride_h + dims, mask=inside, other=0.0).to(tl.float32)
    cos, sin = load_angles(angles_ptr + token * ROPE, NOPE + ROPE, ROPE // 2, BLOCK_D)
    row = rotate_row(row, cos, sin, NOPE + ROPE, ROPE // 2, BLOCK_D, True)
    at = out_ptr + (token * num_heads + head) * (NOPE + ROPE) + dims
    tl.store(at, row.to(out_ptr.dtype.element_ty), mask=inside)


def combine(
    parts_TSHD: torch.Tensor,
    lse_TSH: torch.Tensor,
    sinks_H: torch.Tensor,
    angles_T2R: torch.Tensor,
    out_TX: torch.Tensor,
) -> None:
    """Merge partial results into ``out_TX`` [T, H * D].

    parts_TSHD  float32 contiguous; unspecified where ``lse_TSH`` is -inf
    lse_TSH     float32 contiguous, log2 of each share's sum of weights
    """
    num_tokens, splits, num_heads, head_dim = parts_TSHD.shape
    rope = 2 * angles_T2R.shape[2]
    _combine[(num_tokens * num_heads,)](
        parts_TSHD, lse_TSH, sinks_H, angles_T2R, out_TX, num_heads,
        NOPE=head_dim - rope, ROPE=rope, BLOCK_D=triton.next_power_of_2(head_dim),
        SPLITS=splits, BLOCK_S=triton.next_power_of_2(splits), num_warps=4,
    )  # fmt: skip


def unrotate(o_THD: torch.Tensor, angles_T2R: torch.Tensor) -> torch.Tensor:
    """Results [T, H * D] of ``o_THD`` (last dim contiguous) with the last dims of each head turned back."""
    num_tokens, num_heads, head_dim = o_THD.shape
    rope = 2 * angles_T2R.shape[2]
    out_TX = torch.empty(num_tokens, num_heads * head_dim, dtype=o_THD.dtype, device=o_THD.device)
    if num_tokens:
        _unrotate[(num_tokens * num_heads,)](
            o_THD, angles_T2R, out_TX, num_heads, o_THD.stride(0), o_THD.stride(1),
            NOPE=head_dim - rope, ROPE=rope, BLOCK_D=triton.next_power_of_2(head_dim), num_warps=1,
        )  # fmt: skip
    return out_TX
