"""join_streams: which implementation."""

import torch

from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.join_streams import reference

__all__ = ["join_streams"]


def join_streams(
    stream_parts_PXD: torch.Tensor,
    token_parts_QTD: torch.Tensor,
    *,
    num_streams: int,
    dtype: torch.dtype,
    kernels: Kernels,
) -> torch.Tensor:
    """Input streams [T, S, D] of a NextN layer: each projected stream plus the projected token, summed over parts.

    stream_parts_PXD  float32 [P, T * S, D] parts of the projections of the previous streams
    token_parts_QTD   float32 [Q, T, D] parts of the projection of the next token's embedding

    Source: DeepSeek-V3 technical report, section 2.2, with one projection per input as in the V4 checkpoints.
    """
    if kernels is Kernels.REFERENCE:
        return reference.join_streams(stream_parts_PXD, token_parts_QTD, num_streams, dtype)
    from backends.deepseek_v4.ops.join_streams import kernel

    return kernel.join_streams(stream_parts_PXD, token_parts_QTD, num_streams, dtype)
