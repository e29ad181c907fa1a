"""The input of a sub-block from projected streams, in Triton.

Two programs a token: one sums and normalises the streams, the other decides how the output is spread. The Sinkhorn
rounds are a chain of some hundred dependent steps. Every thread does all of them on a copy of the matrix of its own
(the last axis of its blocks counts copies), which needs no exchange between threads.
"""

import torch
import triton
import triton.language as tl

from backends.deepseek_v4.ops.device.norms import rms_factor, round_to
from backends.deepseek_v4.ops.hyper.values import MixedInput

NUM_WARPS = 4
COPIES = 32 * NUM_WARPS


@triton.jit
def _sum_dots(dots_ptr, num_tokens, columns, P: tl.constexpr, PARTS: tl.constexpr, M: tl.constexpr):
    """Sums over parts of the program's token in ``columns`` [N]."""
    part = tl.arange(0, PARTS)[:, None]
    line = part.to(tl.int64) * num_tokens + tl.program_id(0)
    return tl.sum(tl.load(dots_ptr + line * (M + 1) + columns[None, :], mask=part < P, other=0.0), axis=0)


@triton.jit
def _inverse_length(
    dots_ptr, num_tokens, eps, WIDTH: tl.constexpr, P: tl.constexpr, PARTS: tl.constexpr, M: tl.constexpr
):
    """One over the root mean square of the token's streams."""
    part = tl.arange(0, PARTS)
    line = part.to(tl.int64) * num_tokens + tl.program_id(0)
    squares = tl.sum(tl.load(dots_ptr + line * (M + 1) + M, mask=part < P, other=0.0), axis=0)
    return tl.rsqrt(squares * (1.0 / WIDTH) + eps)


@triton.jit
def _collapse(
    dots_ptr, streams_ptr, base_ptr, scale_ptr, norm_ptr, x_ptr,
    num_tokens, token_stride, stream_stride, eps, hc_eps,
    S: tl.constexpr, D: tl.constexpr, M: tl.constexpr, P: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Weighted sum of the token's streams, rounded to their dtype, then normalised and stored."""
    token = tl.program_id(0).to(tl.int64)
    stream, column = tl.arange(0, S), tl.arange(0, BLOCK)
    inside = column < D
    place = stream[:, None] * stream_stride + column[None, :]
    streams = tl.load(streams_ptr + token * token_stride + place, mask=inside[None, :], other=0.0)
    weight = tl.load(norm_ptr + column, mask=inside, other=0.0)
    mixes = _sum_dots(dots_ptr, num_tokens, stream, P, PARTS, M)
    mixes *= _inverse_length(dots_ptr, num_tokens, eps, S * D, P, PARTS, M)
    pre = tl.sigmoid(mixes * tl.load(scale_ptr) + tl.load(base_ptr + stream)) + hc_eps
    summed = tl.sum(pre[:, None] * streams.to(tl.float32), axis=0)
    rounded = round_to(summed, x_ptr)
    normed = rounded * rms_factor(rounded, D, eps) * weight
    tl.store(x_ptr + token * D + column, normed.to(x_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _sinkhorn(logits, eps, S: tl.constexpr, ROUNDS: tl.constexpr, COPIES: tl.constexpr):
    """``ops.sinkhorn`` of ``logits`` [S, S, COPIES] over the first two axes.

    The rounds scale rows and columns only, so it keeps the first matrix and the two vectors of factors.
    """
    x = tl.exp(logits - tl.max(logits, axis=1)[:, None, :])
    x = x / tl.sum(x, axis=1)[:, None, :] + eps
    rows = tl.full([S, COPIES], 1.0, tl.float32)
    columns = 1.0 / (tl.sum(x, axis=0) + eps)
    for _ in range(ROUNDS - 1):
        rows = rows / (rows * tl.sum(x * columns[None, :, :], axis=1) + eps)
        columns = columns / (columns * tl.sum(x * rows[:, None, :], axis=0) + eps)
    return x * rows[:, None, :] * columns[None, :, :]


@triton.jit
def _spread(
    dots_ptr, base_ptr, scale_ptr, post_ptr, comb_ptr, num_tokens, eps, hc_eps,
    S: tl.constexpr, D: tl.constexpr, M: tl.constexpr, P: tl.constexpr, PARTS: tl.constexpr,
    ROUNDS: tl.constexpr, COPIES: tl.constexpr,
):  # fmt: skip
    """Shares of the token's output and the doubly stochastic matrix of its streams."""
    token = tl.program_id(0).to(tl.int64)
    stream, cell = tl.arange(0, S), tl.arange(0, S * S)
    inverse = _inverse_length(dots_ptr, num_tokens, eps, S * D, P, PARTS, M)
    mixes = _sum_dots(dots_ptr, num_tokens, S + stream, P, PARTS, M) * inverse
    post = 2.0 * tl.sigmoid(mixes * tl.load(scale_ptr + 1) + tl.load(base_ptr + S + stream))
    tl.store(post_ptr + token * S + stream, post)
    mixes = _sum_dots(dots_ptr, num_tokens, 2 * S + cell, P, PARTS, M) * inverse
    logits = tl.reshape(mixes * tl.load(scale_ptr + 2) + tl.load(base_ptr + 2 * S + cell), [S, S])
    copies = tl.broadcast_to(logits[:, :, None], [S, S, COPIES])
    comb = _sinkhorn(copies, hc_eps, S, ROUNDS, COPIES)
    copy = tl.arange(0, COPIES)[None, None, :]
    place = stream[:, None, None] * S + stream[None, :, None] + copy * 0
    tl.store(comb_ptr + token * (S * S) + place, comb, mask=copy == 0)


@triton.jit(do_not_specialize=["num_tokens"])
def _mix_in(
    dots_ptr, streams_ptr, base_ptr, scale_ptr, norm_ptr, x_ptr, post_ptr, comb_ptr,
    num_tokens, token_stride, stream_stride, eps, hc_eps,
    S: tl.constexpr, D: tl.constexpr, M: tl.constexpr, P: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
    ROUNDS: tl.constexpr, COPIES: tl.constexpr,
):  # fmt: skip
    if tl.program_id(1) == 0:
        _collapse(
            dots_ptr, streams_ptr, base_ptr, scale_ptr, norm_ptr, x_ptr,
            num_tokens, token_stride, stream_stride, eps, hc_eps, S, D, M, P, PARTS, BLOCK,
        )  # fmt: skip
    else:
        _spread(
            dots_ptr, base_ptr, scale_ptr, post_ptr, comb_ptr, num_tokens, eps, hc_eps,
            S, D, M, P, PARTS, ROUNDS, COPIES,
        )  # fmt: skip


@triton.jit(do_not_specialize=["num_tokens"])
def _mix_head(
    dots_ptr, streams_ptr, base_ptr, scale_ptr, norm_ptr, x_ptr,
    num_tokens, token_stride, stream_stride, eps, hc_eps,
    S: tl.constexpr, D: tl.constexpr, P: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    _collapse(
        dots_ptr, streams_ptr, base_ptr, scale_ptr, norm_ptr, x_ptr,
        num_tokens, token_stride, stream_stride, eps, hc_eps, S, D, S, P, PARTS, BLOCK,
    )  # fmt: skip


def mix_in(
    dots_PTM1: torch.Tensor,
    streams_TSD: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    norm_weight_D: torch.Tensor,
    *,
    num_rounds: int,
    eps: float,
    hc_eps: float,
) -> MixedInput:
    """See ``mix_in``."""
    num_tokens, num_streams, width = streams_TSD.shape
    _check(dots_PTM1, streams_TSD)
    assert dots_PTM1.shape[2] == 2 * num_streams + num_streams**2 + 1, "dots are those of a sub-block"
    x_TD = torch.empty(num_tokens, width, dtype=streams_TSD.dtype, device=streams_TSD.device)
    post_TS = torch.empty(num_tokens, num_streams, dtype=torch.float32, device=streams_TSD.device)
    comb_TSS = torch.empty(num_tokens, num_streams, num_streams, dtype=torch.float32, device=streams_TSD.device)
    if num_tokens:
        num_parts = dots_PTM1.shape[0]
        _mix_in[(num_tokens, 2)](
            dots_PTM1, streams_TSD, base, scale, norm_weight_D, x_TD, post_TS, comb_TSS,
            num_tokens, streams_TSD.stride(0), streams_TSD.stride(1), eps, hc_eps,
            S=num_streams, D=width, M=dots_PTM1.shape[2] - 1, P=num_parts, PARTS=triton.next_power_of_2(num_parts),
            BLOCK=triton.next_power_of_2(width), ROUNDS=num_rounds, COPIES=COPIES, num_warps=NUM_WARPS,
        )  # fmt: skip
    return MixedInput(x_TD=x_TD, post_TS=post_TS, comb_TSS=comb_TSS)


def mix_head(
    dots_PTM1: torch.Tensor,
    streams_TSD: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    norm_weight_D: torch.Tensor,
    *,
    eps: float,
    hc_eps: float,
) -> torch.Tensor:
    """See ``mix_head``."""
    num_tokens, num_streams, width = streams_TSD.shape
    _check(dots_PTM1, streams_TSD)
    assert dots_PTM1.shape[2] == num_streams + 1, "dots are those of the head"
    x_TD = torch.empty(num_tokens, width, dtype=streams_TSD.dtype, device=streams_TSD.device)
    if num_tokens:
        num_parts = dots_PTM1.shape[0]
        _mix_head[(num_tokens,)](
            dots_PTM1, streams_TSD, base, scale, norm_weight_D, x_TD,
            num_tokens, streams_TSD.stride(0), streams_TSD.stride(1), eps, hc_eps,
            S=num_streams, D=width, P=num_parts, PARTS=triton.next_power_of_2(num_parts),
            BLOCK=triton.next_power_of_2(width), num_warps=NUM_WARPS,
        )  # fmt: skip
    return x_TD


def _check(dots_PTM1: torch.Tensor, streams_TSD: torch.Tensor) -> None:
    assert dots_PTM1.is_contiguous() and dots_PTM1.dtype == torch.float32, "dots are contiguous float32"
    assert streams_TSD.stride(2) == 1, "values of a stream lie together"
