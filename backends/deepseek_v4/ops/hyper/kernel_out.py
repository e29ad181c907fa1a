"""Projections of the streams, and new streams with theirs, in Triton: a program for each chunk of D and few tokens.

``fn`` is far larger than the streams of a token, so it is spread over as many programs as there are chunks; a program
keeps its piece in registers while it goes through its tokens.
"""

import torch
import triton
import triton.language as tl

from backends.deepseek_v4.ops.device.norms import round_to
from backends.deepseek_v4.ops.device.parts import part_strides, sum_parts
from specdec.cache.spec import ceil_div
from specdec.ops.early import EarlyKernel, begin

CHUNK = 32
# (up to so many tokens of a pass, tokens of a program); results of a token do not depend on it.
TOKENS_PER_PROGRAM = ((4, 1), (64, 4))
MANY_TOKENS_PER_PROGRAM = 16


@triton.jit
def _load_fn(fn_ptr, flat, inside, M: tl.constexpr, X: tl.constexpr, ROWS: tl.constexpr):
    row = tl.arange(0, ROWS)[:, None]
    return tl.load(fn_ptr + row * X + flat[None, :], mask=(row < M) & inside[None, :], other=0.0)


@triton.jit
def _with_products(products, x, other, number, S: tl.constexpr, CHUNK: tl.constexpr):
    """``products`` [S, S] with column ``number``: of the streams in ``x`` with the one that ``other`` repeats."""
    column = tl.sum(tl.reshape(x * other, [S, CHUNK]), axis=1)
    return tl.where(tl.arange(0, S)[None, :] == number, column[:, None], products)


@triton.jit
def _store_dots(x, fn, products, dots_ptr, token, M: tl.constexpr, S: tl.constexpr, ROWS: tl.constexpr):
    """Products of ``x`` (fp32 [S * CHUNK]) with the rows of ``fn``, then the streams' own."""
    chunk, num_chunks = tl.program_id(0), tl.num_programs(0)
    dots_ptr += token.to(tl.int64) * (M + S * S) * num_chunks + chunk
    row, stream = tl.arange(0, ROWS), tl.arange(0, S)
    tl.store(dots_ptr + row * num_chunks, tl.sum(fn * x[None, :], axis=1), mask=row < M)
    tl.store(dots_ptr + (M + stream[:, None] * S + stream[None, :]) * num_chunks, products)


@EarlyKernel
@triton.jit(do_not_specialize=["num_tokens", "tokens_per_program"])
def _dots(
    streams_ptr, fn_ptr, dots_ptr, num_tokens, tokens_per_program, token_stride, stream_stride,
    S: tl.constexpr, D: tl.constexpr, M: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    place = tl.arange(0, S * CHUNK)
    stream, column = place // CHUNK, tl.program_id(0) * CHUNK + place % CHUNK
    inside = column < D
    fn = _load_fn(fn_ptr, stream * D + column, inside, M, S * D, ROWS)
    begin(EARLY)
    token = tl.program_id(1) * tokens_per_program
    last = tl.minimum(token + tokens_per_program, num_tokens)
    while token < last:
        line_ptr = streams_ptr + token.to(tl.int64) * token_stride
        x = tl.load(line_ptr + stream * stream_stride + column, mask=inside, other=0.0).to(tl.float32)
        products = tl.zeros([S, S], tl.float32)
        for number in tl.static_range(S):
            other = tl.load(line_ptr + number * stream_stride + column, mask=inside, other=0.0).to(tl.float32)
            products = _with_products(products, x, other, number, S, CHUNK)
        _store_dots(x, fn, products, dots_ptr, token, M, S, ROWS)
        token += 1


@triton.jit
def _new_stream(
    output, number, line_ptr, post_ptr, comb_ptr, new_ptr, token, column, inside, stream_stride, S: tl.constexpr
):
    """Values in ``column`` of the new streams ``number`` (a block or one), rounded to the streams' dtype."""
    x = output * 0.0
    for old in tl.static_range(S):
        share = tl.load(comb_ptr + token * S * S + old * S + number)
        x += share * tl.load(line_ptr + old * stream_stride + column, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(post_ptr + token * S + number) * output
    return round_to(x, new_ptr)


@EarlyKernel
@triton.jit(do_not_specialize=["num_tokens", "tokens_per_program", "parts_stride", "parts_token_stride"])
def _out(
    parts_ptr, streams_ptr, post_ptr, comb_ptr, fn_ptr, new_ptr, dots_ptr,
    num_tokens, tokens_per_program, parts_stride, parts_token_stride, token_stride, stream_stride,
    S: tl.constexpr, D: tl.constexpr, M: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
    UNIT: tl.constexpr, NUM_PARTS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    place = tl.arange(0, S * CHUNK)
    stream, column = place // CHUNK, tl.program_id(0) * CHUNK + place % CHUNK
    inside = column < D
    fn = _load_fn(fn_ptr, stream * D + column, inside, M, S * D, ROWS)
    begin(EARLY)
    token = tl.program_id(1) * tokens_per_program
    last = tl.minimum(token + tokens_per_program, num_tokens)
    while token < last:
        output = sum_parts(parts_ptr, token, column, inside, parts_stride, parts_token_stride, UNIT, NUM_PARTS)
        output = round_to(output, new_ptr)
        line_ptr = streams_ptr + token.to(tl.int64) * token_stride
        x = _new_stream(output, stream, line_ptr, post_ptr, comb_ptr, new_ptr, token, column, inside, stream_stride, S)
        products = tl.zeros([S, S], tl.float32)
        # What a thread needs of other streams it computes itself: that takes fewer steps than an exchange.
        for number in tl.static_range(S):
            other = _new_stream(
                output, number, line_ptr, post_ptr, comb_ptr, new_ptr, token, column, inside, stream_stride, S
            )
            products = _with_products(products, x, other, number, S, CHUNK)
        new_line_ptr = new_ptr + (token.to(tl.int64) * S + stream) * D
        tl.store(new_line_ptr + column, x.to(new_ptr.dtype.element_ty), mask=inside)
        _store_dots(x, fn, products, dots_ptr, token, M, S, ROWS)
        token += 1


def mix_dots(streams_TSD: torch.Tensor, fn_MX: torch.Tensor) -> torch.Tensor:
    """See ``mix_dots``."""
    num_tokens, num_streams, width = streams_TSD.shape
    _check(streams_TSD, fn_MX)
    dots_TNP = _empty_dots(streams_TSD, fn_MX)
    if num_tokens:
        step = _tokens_per_program(num_tokens)
        _dots[(dots_TNP.shape[2], ceil_div(num_tokens, step))](
            streams_TSD, fn_MX, dots_TNP, num_tokens, step, streams_TSD.stride(0), streams_TSD.stride(1),
            S=num_streams, D=width, M=len(fn_MX), ROWS=triton.next_power_of_2(len(fn_MX)), CHUNK=CHUNK,
            num_warps=4,
        )  # fmt: skip
    return dots_TNP


def mix_out(
    parts_QTD: torch.Tensor,
    streams_TSD: torch.Tensor,
    post_TS: torch.Tensor,
    comb_TSS: torch.Tensor,
    fn_MX: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``mix_out``."""
    num_tokens, num_streams, width = streams_TSD.shape
    _check(streams_TSD, fn_MX)
    assert post_TS.is_contiguous() and comb_TSS.is_contiguous(), "mix_in makes contiguous weights"
    new_TSD = torch.empty(num_tokens, num_streams, width, dtype=streams_TSD.dtype, device=streams_TSD.device)
    dots_TNP = _empty_dots(streams_TSD, fn_MX)
    if num_tokens:
        step, strides = _tokens_per_program(num_tokens), part_strides(parts_QTD)
        _out[(dots_TNP.shape[2], ceil_div(num_tokens, step))](
            parts_QTD, streams_TSD, post_TS, comb_TSS, fn_MX, new_TSD, dots_TNP,
            num_tokens, step, strides.part, strides.token, streams_TSD.stride(0), streams_TSD.stride(1),
            S=num_streams, D=width, M=len(fn_MX), ROWS=triton.next_power_of_2(len(fn_MX)), CHUNK=CHUNK,
            UNIT=strides.unit, NUM_PARTS=parts_QTD.shape[0], num_warps=4,
        )  # fmt: skip
    return new_TSD, dots_TNP


def _check(streams_TSD: torch.Tensor, fn_MX: torch.Tensor) -> None:
    num_streams = streams_TSD.shape[1]
    assert num_streams & (num_streams - 1) == 0, f"the number of streams must be a power of two, got {num_streams}"
    assert streams_TSD.stride(2) == 1, "values of a stream lie together"
    assert fn_MX.is_contiguous() and fn_MX.dtype == torch.float32, "fn is contiguous float32"


def _empty_dots(streams_TSD: torch.Tensor, fn_MX: torch.Tensor) -> torch.Tensor:
    num_tokens, num_streams, width = streams_TSD.shape
    shape = (num_tokens, len(fn_MX) + num_streams**2, ceil_div(width, CHUNK))
    return torch.empty(shape, dtype=torch.float32, device=streams_TSD.device)


def _tokens_per_program(num_tokens: int) -> int:
    for limit, step in TOKENS_PER_PROGRAM:
        if num_tokens <= limit:
            return step
    return MANY_TOKENS_PER_PROGRAM
