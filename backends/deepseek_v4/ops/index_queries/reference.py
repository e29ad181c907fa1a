"""The indexer's queries in plain torch."""

import torch

from backends.deepseek_v4.ops.sums import sum_in_order
from backends.deepseek_v4.rope import Rope, apply_rope
from backends.deepseek_v4.rows.format import IndexRowFormat


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
    q_TJD = sum_in_order(parts_PTX).to(dtype).unflatten(-1, (num_heads, head_dim))
    rope = Rope(cos=angles_T2R[:, 0], sin=angles_T2R[:, 1])
    return rows.prepare_query(apply_rope(q_TJD, rope.per_head())).to(dtype)
