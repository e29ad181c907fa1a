"""Projections of the streams, and new streams with theirs, in Triton: a program for each chunk of D and few tokens.

``fn`` is far larger than the streams of a token, so it is spread over as many programs as there are chunks; a program
keeps its piece in registers while it goes through its tokens.
"""

import torch
import triton
import triton.language as tl

from backends.deepseek_v4.ops.device.parts import part_strides, sum_parts
from specdec.cache.spec import ceil_div

CHUNK = 32
# (up to so many tokens of a pass, tokens of a program); results of a token do not depend on it.
TOKENS_PER_PROGRAM = ((4, 1), (64, 4))
MANY_TOKENS_PER_PROGRAM = 16


@triton.jit
def _load_fn(fn_ptr, flat, inside, M: tl.constexpr, X: tl.constexpr, ROWS: tl.constexpr):
    row = tl.arange(0, ROWS)[:, None]
    return tl.load(fn_ptr + row * X + flat[None, :], mask=(row < M) & inside[None, :], other=0.0)


@triton.jit
def _store_dots(x, fn, dots_ptr, token, num_tokens, M: tl.constexpr, ROWS: tl.constexpr):
    """Products of ``x`` with the rows of ``fn``, and after them its product with itself."""
    row = tl.arange(0, ROWS)
    factors = tl.where(row[:, None] == M, x[None, :], fn)
    dots = tl.sum(factors * x[None, :], axis=1)
    line = tl.program_id(0).to(tl.int64) * num_tokens + token
    tl.store(dots_ptr + line * (M + 1) + row, dots, mask=row <= M)


@triton.jit(do_not_specialize=["num_tokens", "tokens_per_program"])
def _dots(
    streams_ptr, fn_ptr, dots_ptr, num_tokens, tokens_per_program, token_stride, stream_stride,
    S: tl.constexpr, D: tl.constexpr, M: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    place = tl.arange(0, S * CHUNK)
    stream, column = place // CHUNK, tl.program_id(0) * CHUNK + place % CHUNK
    inside = column < D
    fn = _load_fn(fn_ptr, stream * D + column, inside, M, S * D, ROWS)
    token = tl.program_id(1) * tokens_per_program
    last = tl.minimum(token + tokens_per_program, num_tokens)
    while token < last:
        line_ptr = streams_ptr + token.to(tl.int64) * token_stride
        x = tl.load(line_ptr + stream * stream_stride + column, mask=inside, other=0.0).to(tl.float32)
        _store_dots(x, fn, dots_ptr, token, num_tokens, M, ROWS)
        token += 1


@triton.jit(do_not_specialize=["num_tokens", "tokens_per_program", "parts_stride", "parts_token_stride"])
def _out(
    parts_ptr, streams_ptr, post_ptr, comb_ptr, fn_ptr, new_ptr, dots_ptr,
    num_tokens, tokens_per_program, parts_stride, parts_token_stride, token_stride, stream_stride,
    S: tl.constexpr, D: tl.constexpr, M: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
    UNIT: tl.constexpr, NUM_PARTS: tl.constexpr,
):  # fmt: skip
    place = tl.arange(0, S * CHUNK)
    stream, column = place // CHUNK, tl.program_id(0) * CHUNK + place % CHUNK
    inside = column < D
    fn = _load_fn(fn_ptr, stream * D + column, inside, M, S * D, ROWS)
    token = tl.program_id(1) * tokens_per_program
    last = tl.minimum(token + tokens_per_program, num_tokens)
    while token < last:
        output = sum_parts(parts_ptr, token, column, inside, parts_stride, parts_token_stride, UNIT, NUM_PARTS)
        output = output.to(new_ptr.dtype.element_ty).to(tl.float32)
        line_ptr = streams_ptr + token.to(tl.int64) * token_stride
        x = tl.zeros([S * CHUNK], tl.float32)
        for old in tl.static_range(S):
            share = tl.load(comb_ptr + token * S * S + old * S + stream)
            x += share * tl.load(line_ptr + old * stream_stride + column, mask=inside, other=0.0).to(tl.float32)
        x += tl.load(post_ptr + token * S + stream) * output
        rounded = x.to(new_ptr.dtype.element_ty)
        tl.store(new_ptr + (token.to(tl.int64) * S + stream) * D + column, rounded, mask=inside)
        _store_dots(rounded.to(tl.float32), fn, dots_ptr, token, num_tokens, M, ROWS)
        token += 1


def mix_dots(streams_TSD: torch.Tensor, fn_MX: torch.Tensor) -> torch.Tensor:
    """See ``mix_dots``."""
    num_tokens, num_streams, width = streams_TSD.shape
    _check(streams_TSD, fn_MX)
    dots_PTM1 = _empty_dots(streams_TSD, fn_MX)
    if num_tokens:
        step = _tokens_per_program(num_tokens)
        _dots[(dots_PTM1.shape[0], ceil_div(num_tokens, step))](
            streams_TSD, fn_MX, dots_PTM1, num_tokens, step, streams_TSD.stride(0), streams_TSD.stride(1),
            S=num_streams, D=width, M=len(fn_MX), ROWS=triton.next_power_of_2(len(fn_MX) + 1), CHUNK=CHUNK,
            num_warps=4,
        )  # fmt: skip
    return dots_PTM1


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
    dots_PTM1 = _empty_dots(streams_TSD, fn_MX)
    if num_tokens:
        step, strides = _tokens_per_program(num_tokens), part_strides(parts_QTD)
        _out[(dots_PTM1.shape[0], ceil_div(num_tokens, step))](
            parts_QTD, streams_TSD, post_TS, comb_TSS, fn_MX, new_TSD, dots_PTM1,
            num_tokens, step, strides.part, strides.token, streams_TSD.stride(0), streams_TSD.stride(1),
            S=num_streams, D=width, M=len(fn_MX), ROWS=triton.next_power_of_2(len(fn_MX) + 1), CHUNK=CHUNK,
            UNIT=strides.unit, NUM_PARTS=parts_QTD.shape[0], num_warps=4,
        )  # fmt: skip
    return new_TSD, dots_PTM1


def _check(streams_TSD: torch.Tensor, fn_MX: torch.Tensor) -> None:
    num_streams = streams_TSD.shape[1]
    assert num_streams & (num_streams - 1) == 0, f"the number of streams must be a power of two, got {num_streams}"
    assert streams_TSD.stride(2) == 1, "values of a stream lie together"
    assert fn_MX.is_contiguous() and fn_MX.dtype == torch.float32, "fn is contiguous float32"


def _empty_dots(streams_TSD: torch.Tensor, fn_MX: torch.Tensor) -> torch.Tensor:
    shape = (ceil_div(streams_TSD.shape[2], CHUNK), streams_TSD.shape[0], len(fn_MX) + 1)
    return torch.empty(shape, dtype=torch.float32, device=streams_TSD.device)


def _tokens_per_program(num_tokens: int) -> int:
    for limit, step in TOKENS_PER_PROGRAM:
        if num_tokens <= limit:
            return step
    return MANY_TOKENS_PER_PROGRAM
