"""The input of a sub-block from projected streams, in Triton.

One program of a token decides how the output is spread, the others sum and normalise the streams, each a block of
columns: the length of the weighted sum follows from the inner products of the streams, without the sum. Every program
adds up the parts that it needs.

The Sinkhorn rounds are a chain of some hundred dependent steps. Every thread does all of them on a copy of the matrix
of its own (the last axis of its blocks counts copies), which needs no exchange between threads.
"""

import torch
import triton
import triton.language as tl

from backends.deepseek_v4.ops.device.norms import round_to
from backends.deepseek_v4.ops.hyper.values import MixedInput
from specdec.cache.spec import ceil_div
from specdec.ops.early import EarlyKernel, begin

# One warp adds up without a barrier.
NUM_WARPS = 1
COPIES = 32 * NUM_WARPS
COLUMNS = 512


@triton.jit
def _sum_dots(dots_ptr, rows, P: tl.constexpr, PARTS: tl.constexpr):
    """Sums over the parts of ``rows`` (a block) of a token, whose dots begin at ``dots_ptr``."""
    part = tl.arange(0, PARTS)
    places = tl.expand_dims(rows, len(rows.shape)) * P + part
    return tl.sum(tl.load(dots_ptr + places, mask=part < P, other=0.0), axis=len(rows.shape))


@triton.jit
def _inverse_length(squares, eps, WIDTH: tl.constexpr):
    """One over the root mean square of WIDTH values whose squares add up to ``squares``."""
    return tl.rsqrt(squares * (1.0 / WIDTH) + eps)


@triton.jit
def _collapse(
    dots_ptr, streams_ptr, base_ptr, scale_ptr, norm_ptr, x_ptr, block,
    token_stride, stream_stride, eps, hc_eps,
    S: tl.constexpr, D: tl.constexpr, M: tl.constexpr, P: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A block of the weighted sum of the token's streams, rounded to their dtype, then normalised and stored."""
    token = tl.program_id(0).to(tl.int64)
    stream, column = tl.arange(0, S), block * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < D
    place = stream[:, None] * stream_stride + column[None, :]
    streams = tl.load(streams_ptr + token * token_stride + place, mask=inside[None, :], other=0.0)
    weight = tl.load(norm_ptr + column, mask=inside, other=0.0)
    scale, base = tl.load(scale_ptr), tl.load(base_ptr + stream)
    dots_ptr += token * (M + S * S) * P
    mixes = _sum_dots(dots_ptr, stream, P, PARTS)
    products = _sum_dots(dots_ptr, M + stream[:, None] * S + stream[None, :], P, PARTS)
    squares = tl.sum(tl.where(stream[:, None] == stream[None, :], products, 0.0))
    pre = tl.sigmoid(mixes * _inverse_length(squares, eps, S * D) * scale + base) + hc_eps
    # A sum of streams that cancel has almost no length, and rounding may leave less.
    squares = tl.maximum(tl.sum(pre[:, None] * products * pre[None, :]), 0.0)
    summed = round_to(tl.sum(pre[:, None] * streams.to(tl.float32), axis=0), x_ptr)
    normed = summed * _inverse_length(squares, eps, D) * weight
    tl.store(x_ptr + token * D + column, normed.to(x_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _inverse(x):
    """1 / x of normal positive values, within some units of the last place; a division takes twice as long."""
    root = tl.rsqrt(x)
    return root * root


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
        rows *= _inverse(rows * tl.sum(x * columns[None, :, :], axis=1) + eps)
        columns *= _inverse(columns * tl.sum(x * rows[:, None, :], axis=0) + eps)
    return x * rows[:, None, :] * columns[None, :, :]


@triton.jit
def _spread(
    dots_ptr, base_ptr, scale_ptr, post_ptr, comb_ptr, eps, hc_eps,
    S: tl.constexpr, D: tl.constexpr, M: tl.constexpr, P: tl.constexpr, PARTS: tl.constexpr,
    ROUNDS: tl.constexpr, COPIES: tl.constexpr,
):  # fmt: skip
    """Shares of the token's output and the doubly stochastic matrix of its streams."""
    token = tl.program_id(0).to(tl.int64)
    stream, cell = tl.arange(0, S), tl.arange(0, S * S)
    dots_ptr += token * (M + S * S) * P
    post_mixes = _sum_dots(dots_ptr, S + stream, P, PARTS)
    comb_mixes = _sum_dots(dots_ptr, 2 * S + cell, P, PARTS)
    inverse = _inverse_length(tl.sum(_sum_dots(dots_ptr, M + stream * (S + 1), P, PARTS)), eps, S * D)
    post = 2.0 * tl.sigmoid(post_mixes * inverse * tl.load(scale_ptr + 1) + tl.load(base_ptr + S + stream))
    tl.store(post_ptr + token * S + stream, post)
    logits = comb_mixes * inverse * tl.load(scale_ptr + 2) + tl.load(base_ptr + 2 * S + cell)
    copies = tl.broadcast_to(tl.reshape(logits, [S, S])[:, :, None], [S, S, COPIES])
    comb = _sinkhorn(copies, hc_eps, S, ROUNDS, COPIES)
    copy = tl.arange(0, COPIES)[None, None, :]
    place = stream[:, None, None] * S + stream[None, :, None] + copy * 0
    tl.store(comb_ptr + token * (S * S) + place, comb, mask=copy == 0)


@EarlyKernel
@triton.jit
def _mix_in(
    dots_ptr, streams_ptr, base_ptr, scale_ptr, norm_ptr, x_ptr, post_ptr, comb_ptr,
    token_stride, stream_stride, eps, hc_eps,
    S: tl.constexpr, D: tl.constexpr, M: tl.constexpr, P: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr,
    ROUNDS: tl.constexpr, COPIES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    block = tl.program_id(1)
    if block == 0:
        _spread(dots_ptr, base_ptr, scale_ptr, post_ptr, comb_ptr, eps, hc_eps, S, D, M, P, PARTS, ROUNDS, COPIES)
    else:
        _collapse(
            dots_ptr, streams_ptr, base_ptr, scale_ptr, norm_ptr, x_ptr, block - 1,
            token_stride, stream_stride, eps, hc_eps, S, D, M, P, PARTS, COLUMNS,
        )  # fmt: skip


@EarlyKernel
@triton.jit
def _mix_head(
    dots_ptr, streams_ptr, base_ptr, scale_ptr, norm_ptr, x_ptr,
    token_stride, stream_stride, eps, hc_eps,
    S: tl.constexpr, D: tl.constexpr, P: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    _collapse(
        dots_ptr, streams_ptr, base_ptr, scale_ptr, norm_ptr, x_ptr, tl.program_id(1),
        token_stride, stream_stride, eps, hc_eps, S, D, S, P, PARTS, COLUMNS,
    )  # fmt: skip


def mix_in(
    dots_TNP: torch.Tensor,
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
    _check(dots_TNP, streams_TSD)
    assert dots_TNP.shape[1] == 2 * num_streams + 2 * num_streams**2, "dots are those of a sub-block"
    x_TD = torch.empty(num_tokens, width, dtype=streams_TSD.dtype, device=streams_TSD.device)
    post_TS = torch.empty(num_tokens, num_streams, dtype=torch.float32, device=streams_TSD.device)
    comb_TSS = torch.empty(num_tokens, num_streams, num_streams, dtype=torch.float32, device=streams_TSD.device)
    if num_tokens:
        num_parts = dots_TNP.shape[2]
        _mix_in[(num_tokens, 1 + ceil_div(width, COLUMNS))](
            dots_TNP, streams_TSD, base, scale, norm_weight_D, x_TD, post_TS, comb_TSS,
            streams_TSD.stride(0), streams_TSD.stride(1), eps, hc_eps,
            S=num_streams, D=width, M=2 * num_streams + num_streams**2, P=num_parts,
            PARTS=triton.next_power_of_2(num_parts), COLUMNS=COLUMNS, ROUNDS=num_rounds, COPIES=COPIES,
            num_warps=NUM_WARPS,
        )  # fmt: skip
    return MixedInput(x_TD=x_TD, post_TS=post_TS, comb_TSS=comb_TSS)


def mix_head(
    dots_TNP: torch.Tensor,
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
    _check(dots_TNP, streams_TSD)
    assert dots_TNP.shape[1] == num_streams + num_streams**2, "dots are those of the head"
    x_TD = torch.empty(num_tokens, width, dtype=streams_TSD.dtype, device=streams_TSD.device)
    if num_tokens:
        num_parts = dots_TNP.shape[2]
        _mix_head[(num_tokens, ceil_div(width, COLUMNS))](
            dots_TNP, streams_TSD, base, scale, norm_weight_D, x_TD,
            streams_TSD.stride(0), streams_TSD.stride(1), eps, hc_eps,
            S=num_streams, D=width, P=num_parts, PARTS=triton.next_power_of_2(num_parts),
            COLUMNS=COLUMNS, num_warps=NUM_WARPS,
        )  # fmt: skip
    return x_TD


def _check(dots_TNP: torch.Tensor, streams_TSD: torch.Tensor) -> None:
    assert dots_TNP.is_contiguous() and dots_TNP.dtype == torch.float32, "dots are contiguous float32"
    assert streams_TSD.stride(2) == 1, "values of a stream lie together"
