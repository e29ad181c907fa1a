"""norm_rows: which implementation."""

import torch

from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.norm_rows import reference

__all__ = ["norm_rows"]


def norm_rows(x_XD: torch.Tensor, weight_D: torch.Tensor, eps: float, *, kernels: Kernels) -> torch.Tensor:
    """``weight * x / sqrt(mean(x^2) + eps)`` of every row [X, D], computed in float32, in ``x``'s dtype.

    Rows are contiguous and may lie apart; ``weight_D`` is float32. Source: Zhang and Sennrich, RMSNorm, 2019.
    """
    if kernels is Kernels.REFERENCE:
        return reference.norm_rows(x_XD, weight_D, eps)
    from backends.deepseek_v4.ops.norm_rows import kernel

    return kernel.norm_rows(x_XD, weight_D, eps)
