"""Streams and tokens joined in plain torch."""

import torch


def join_streams(
    stream_parts_PXD: torch.Tensor, token_parts_QTD: torch.Tensor, num_streams: int, dtype: torch.dtype
) -> torch.Tensor:
    streams_TSD = stream_parts_PXD.sum(0).unflatten(0, (-1, num_streams))
    return (streams_TSD + token_parts_QTD.sum(0).unsqueeze(1)).to(dtype)
