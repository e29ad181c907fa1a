"""index_queries: from projected latents to the indexer's queries; which implementation."""

import torch

from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.index_queries import reference
from backends.deepseek_v4.rows.format import IndexRowFormat

__all__ = ["index_queries"]


def index_queries(
    parts_PTX: torch.Tensor,
    *,
    num_heads: int,
    head_dim: int,
    angles_T2R: torch.Tensor,
    rows: IndexRowFormat,
    dtype: torch.dtype,
    kernels: Kernels,
) -> torch.Tensor:
    """Queries [T, J, D] in ``dtype`` as the scoring meets keys of the format ``rows``.

    parts_PTX   [P, T, J * D] float32 or bf16, values adjacent, rows and parts may lie apart
    angles_T2R  float32 [T, 2, R], contiguous: of each token's position (``PassAngles``)

    The sum of the parts, rotated, then what ``rows.prepare_query`` does: nothing for plain keys; for quantised ones
    the Hadamard rotation and a round trip through the key's own quantiser, whose values bf16 holds exactly. Rounded
    to ``dtype`` where ``Indexer.query`` rounds: the sum and the rotated values.
    """
    assert parts_PTX.shape[2] == num_heads * head_dim, "one column per value of a head"
    assert rows.width == head_dim, "queries are as wide as keys"
    if kernels is Kernels.REFERENCE:
        return reference.index_queries(
            parts_PTX, num_heads=num_heads, head_dim=head_dim, angles_T2R=angles_T2R, rows=rows, dtype=dtype
        )
    from backends.deepseek_v4.ops.index_queries import kernel

    return kernel.index_queries(
        parts_PTX, num_heads=num_heads, head_dim=head_dim, angles_T2R=angles_T2R, rows=rows, dtype=dtype
    )
