"""gather_rows: cache rows of any storage as a contiguous matrix; which implementation."""

import torch

from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.gather_rows import reference
from backends.deepseek_v4.rows.format import RowFormat

__all__ = ["gather_rows"]


def gather_rows(
    buffer: torch.Tensor, rows: RowFormat, slots_X: torch.Tensor, *, dtype: torch.dtype, kernels: Kernels
) -> torch.Tensor:
    """Rows [X, D] of ``dtype`` (float32 or bf16) at ``slots_X`` (int32, any shape), decoded; zeros for negative slots.

    ``buffer`` is contiguous pages of ``rows``, plain or fp8 K/V rows (UnsupportedError for others with kernels). A
    missing row is zero whatever the cache holds, so the result may be multiplied by weights of zero.
    """
    if kernels is Kernels.REFERENCE:
        return reference.gather_rows(buffer, rows, slots_X, dtype)
    from backends.deepseek_v4.ops.gather_rows import kernel

    return kernel.gather_rows(buffer, rows, slots_X, dtype)
