"""Attention queries in plain torch."""

import torch

from backends.deepseek_v4.norms import rms_norm
from backends.deepseek_v4.ops.sums import sum_in_order
from backends.deepseek_v4.rope import Rope, apply_rope


def finish_queries(
    parts_PTX: torch.Tensor,
    *,
    num_heads: int,
    head_dim: int,
    angles_T2R: torch.Tensor,
    eps: float,
    dtype: torch.dtype,
) -> torch.Tensor:
    q_THD = sum_in_order(parts_PTX).to(dtype).unflatten(-1, (num_heads, head_dim))
    rope = Rope(cos=angles_T2R[:, 0], sin=angles_T2R[:, 1])
    return apply_rope(rms_norm(q_THD, None, eps), rope.per_head())
