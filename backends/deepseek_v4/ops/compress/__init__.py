"""compress: write the compressed rows that tokens of a pass close; which implementation."""

import torch

from backends.deepseek_v4.cache_groups import AttentionKind
from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.compress import reference
from backends.deepseek_v4.pass_values import PassIndices
from backends.deepseek_v4.rows.format import RowFormat
from specdec.api import GroupTable

__all__ = ["compress"]


def compress(
    indices: PassIndices,
    kind: AttentionKind,
    table: GroupTable,
    rows_per_page: int,
    state: torch.Tensor,
    *,
    norm_weight: torch.Tensor,
    eps: float,
    angles_T2R: torch.Tensor,
    buffer: torch.Tensor,
    rows: RowFormat,
    head_dim: int,
    kernels: Kernels,
) -> None:
    """Pool the window of state rows that ends at each token with an entry slot, and write the compressed row there.

    table, rows_per_page, state  block table, page size and buffer (float32 [P, R, 2 * C]) of the state group; the
                                 pass's own state rows are written already
    norm_weight, eps             float32 [head_dim] and eps of the norm of compressed rows
    angles_T2R                   float32 [T, 2, R], contiguous: of each token's block start (``PassAngles.entries``)
    buffer, rows                 where compressed rows go, in place, and their format; index keys are rotated by it

    State rows of positions before the text or without a page have no weight. Source: ``Compressor.pool``; contract of
    the bytes: ``rows``. UnsupportedError for a row format that has no kernel.
    """
    args = (indices, kind, table, rows_per_page, state)
    if kernels is Kernels.REFERENCE:
        return reference.compress(
            *args, norm_weight=norm_weight, eps=eps, angles_T2R=angles_T2R, buffer=buffer, rows=rows, head_dim=head_dim
        )
    from backends.deepseek_v4.ops.compress import kernel

    return kernel.compress(
        *args, norm_weight=norm_weight, eps=eps, angles_T2R=angles_T2R, buffer=buffer, rows=rows, head_dim=head_dim
    )
