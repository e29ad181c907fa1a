"""RMS normalisation in Triton: one program a row."""

import torch
import triton
import triton.language as tl

from specdec.ops.early import EarlyKernel, begin


@EarlyKernel
@triton.jit
def _norm(x_ptr, weight_ptr, out_ptr, row_stride, eps, D: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    begin(EARLY)
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < D
    x = tl.load(x_ptr + row.to(tl.int64) * row_stride + column, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0)
    normed = x * tl.rsqrt(tl.sum(x * x, axis=0) / D + eps) * weight
    tl.store(out_ptr + row.to(tl.int64) * D + column, normed.to(out_ptr.dtype.element_ty), mask=inside)


def norm_rows(x_XD: torch.Tensor, weight_D: torch.Tensor, eps: float) -> torch.Tensor:
    """See ``norm_rows``."""
    num_rows, width = x_XD.shape
    out_XD = torch.empty(num_rows, width, dtype=x_XD.dtype, device=x_XD.device)
    if num_rows:
        _norm[(num_rows,)](
            x_XD, weight_D, out_XD, x_XD.stride(0), eps, D=width, BLOCK=triton.next_power_of_2(width), num_warps=8
        )
    return out_XD
