"""finish_queries: from projected latents to attention queries; which implementation."""

import torch

from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.finish_queries import reference

__all__ = ["finish_queries"]


def finish_queries(
    parts_PTX: torch.Tensor,
    *,
    num_heads: int,
    head_dim: int,
    angles_T2R: torch.Tensor,
    eps: float,
    dtype: torch.dtype,
    kernels: Kernels,
) -> torch.Tensor:
    """Queries [T, H, d] in ``dtype``: the sum of the parts, normalised per head without a weight, then rotated.

    parts_PTX   [P, T, H * d] float32 or bf16, values adjacent, rows and parts may lie apart
    angles_T2R  float32 [T, 2, R], contiguous: of each token's position (``PassAngles``)

    Rounded to ``dtype`` where ``Attention.project`` rounds: the sum, the normalised and the rotated values.
    """
    assert parts_PTX.shape[2] == num_heads * head_dim, "one column per value of a head"
    if kernels is Kernels.REFERENCE:
        return reference.finish_queries(
            parts_PTX, num_heads=num_heads, head_dim=head_dim, angles_T2R=angles_T2R, eps=eps, dtype=dtype
        )
    from backends.deepseek_v4.ops.finish_queries import kernel

    return kernel.finish_queries(
        parts_PTX, num_heads=num_heads, head_dim=head_dim, angles_T2R=angles_T2R, eps=eps, dtype=dtype
    )
