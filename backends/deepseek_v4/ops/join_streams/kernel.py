"""Streams and tokens joined in Triton: one program per stream row and block of channels."""

import torch
import triton
import triton.language as tl

from specdec.ops.early import EarlyKernel, begin

BLOCK = 1024


@EarlyKernel
@triton.jit
def _join(
    stream_ptr, token_ptr, out_ptr, num_rows,
    P: tl.constexpr, Q: tl.constexpr, S: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < D
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for part in range(P):
        total += tl.load(stream_ptr + (part * num_rows + row) * D + column, mask=inside, other=0.0)
    token = tl.zeros((BLOCK,), dtype=tl.float32)
    for part in range(Q):
        token += tl.load(token_ptr + (part * (num_rows // S) + row // S) * D + column, mask=inside, other=0.0)
    tl.store(out_ptr + row * D + column, (total + token).to(out_ptr.dtype.element_ty), mask=inside)


def join_streams(
    stream_parts_PXD: torch.Tensor, token_parts_QTD: torch.Tensor, num_streams: int, dtype: torch.dtype
) -> torch.Tensor:
    """See ``join_streams``."""
    stream_parts_PXD, token_parts_QTD = stream_parts_PXD.contiguous(), token_parts_QTD.contiguous()
    num_parts, num_rows, width = stream_parts_PXD.shape
    out_TSD = torch.empty(num_rows // num_streams, num_streams, width, dtype=dtype, device=stream_parts_PXD.device)
    if num_rows:
        _join[(num_rows, triton.cdiv(width, BLOCK))](
            stream_parts_PXD, token_parts_QTD, out_TSD, num_rows,
            P=num_parts, Q=token_parts_QTD.shape[0], S=num_streams, D=width, BLOCK=BLOCK,
        )  # fmt: skip
    return out_TSD
