"""Projections of the streams, and new streams with theirs, in Triton: a program for each chunk of D and block of tokens.

``fn`` is far larger than the streams of a token, so it is spread over as many programs as there are chunks; a program
reads its piece once and multiplies it by all its tokens at once. Tokens are columns of a product and do not meet.
Tensor cores multiply bf16 streams exactly, with each other and with the three bf16 parts of ``fn``.
"""

import torch
import triton
import triton.language as tl

from backends.deepseek_v4.ops.device.parts import part_strides, sum_parts
from specdec.cache.spec import ceil_div

CHUNK = 32
TOKENS = 8
NUM_WARPS = 4
# Blocks of tokens that a program goes through, so that a long pass does not read fn for each; few tokens want programs.
FEW_TOKENS, BLOCKS_OF_MANY = 128, 4


@triton.jit
def _load_fn(fn_ptr, S: tl.constexpr, D: tl.constexpr, M: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr):
    """The program's columns [ROWS, S * CHUNK] of ``fn``; rows beyond M are 0."""
    row, flat = tl.arange(0, ROWS)[:, None], tl.arange(0, S * CHUNK)[None, :]
    column = tl.program_id(0) * CHUNK + flat % CHUNK
    place = row * (S * D) + flat // CHUNK * D + column
    return tl.load(fn_ptr + place, mask=(row < M) & (column < D), other=0.0)


@triton.jit
def _multiply(fn, x):
    """Product of ``fn`` (fp32 [ROWS, K]) and ``x`` [K, TOKENS]; bf16 values meet the three bf16 parts of ``fn``."""
    if x.dtype == tl.float32:
        return tl.dot(fn, x, input_precision="ieee")
    else:
        high = fn.to(x.dtype)
        rest = fn - high.to(tl.float32)
        middle = rest.to(x.dtype)
        low = (rest - middle.to(tl.float32)).to(x.dtype)
        return tl.dot(high, x, tl.dot(middle, x, tl.dot(low, x)))


@triton.jit
def _store_dots(
    streams_ptr, fn, dots_ptr, first, num_tokens, token_stride, stream_stride,
    S: tl.constexpr, D: tl.constexpr, M: tl.constexpr, TOKENS: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Products of the streams of TOKENS tokens with the rows of ``fn``, and of a token's streams with each other."""
    chunk, num_chunks = tl.program_id(0), tl.num_programs(0)
    row, token, flat = tl.arange(0, ROWS), first + tl.arange(0, TOKENS), tl.arange(0, S * CHUNK)
    stream, column = flat // CHUNK, chunk * CHUNK + flat % CHUNK
    place = (token.to(tl.int64) * token_stride)[None, :] + (stream * stream_stride + column)[:, None]
    x = tl.load(streams_ptr + place, mask=(token < num_tokens)[None, :] & (column < D)[:, None], other=0.0)
    dots = _multiply(fn, x)
    place = (token.to(tl.int64) * (M + S * S))[None, :] + row[:, None]
    tl.store(dots_ptr + place * num_chunks + chunk, dots, mask=(row < M)[:, None] & (token < num_tokens)[None, :])

    line, column = tl.arange(0, TOKENS * S), chunk * CHUNK + tl.arange(0, CHUNK)
    token, stream = first + line // S, line % S
    place = (token.to(tl.int64) * token_stride + stream * stream_stride)[:, None] + column[None, :]
    x = tl.load(streams_ptr + place, mask=(token < num_tokens)[:, None] & (column < D)[None, :], other=0.0)
    products = tl.dot(x, tl.trans(x), input_precision="ieee")
    place = (token.to(tl.int64) * (M + S * S) + M + stream * S)[:, None] + stream[None, :]
    own = (token[:, None] == token[None, :]) & (token < num_tokens)[:, None]
    tl.store(dots_ptr + place * num_chunks + chunk, products, mask=own)


@triton.jit(do_not_specialize=["num_tokens", "blocks"])
def _dots(
    streams_ptr, fn_ptr, dots_ptr, num_tokens, blocks, token_stride, stream_stride,
    S: tl.constexpr, D: tl.constexpr, M: tl.constexpr, TOKENS: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    fn = _load_fn(fn_ptr, S, D, M, CHUNK, ROWS)
    first = tl.program_id(1) * blocks * TOKENS
    last = tl.minimum(first + blocks * TOKENS, num_tokens)
    while first < last:
        _store_dots(
            streams_ptr, fn, dots_ptr, first, num_tokens, token_stride, stream_stride, S, D, M, TOKENS, CHUNK, ROWS
        )
        first += TOKENS


@triton.jit
def _store_streams(
    parts_ptr, streams_ptr, post_ptr, comb_ptr, new_ptr, first, num_tokens,
    parts_stride, parts_token_stride, token_stride, stream_stride,
    S: tl.constexpr, D: tl.constexpr, TOKENS: tl.constexpr, CHUNK: tl.constexpr,
    UNIT: tl.constexpr, NUM_PARTS: tl.constexpr,
):  # fmt: skip
    """New streams of TOKENS tokens."""
    line = tl.arange(0, TOKENS * S)[:, None]
    token, stream = first + line // S, line % S
    column = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)[None, :]
    real = token < num_tokens
    inside = real & (column < D)
    output = sum_parts(parts_ptr, token, column, inside, parts_stride, parts_token_stride, UNIT, NUM_PARTS)
    output = output.to(new_ptr.dtype.element_ty).to(tl.float32)
    lines = streams_ptr + token.to(tl.int64) * token_stride + column
    x = tl.zeros([TOKENS * S, CHUNK], tl.float32)
    for old in tl.static_range(S):
        share = tl.load(comb_ptr + token * (S * S) + old * S + stream, mask=real, other=0.0)
        x += share * tl.load(lines + old * stream_stride, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(post_ptr + token * S + stream, mask=real, other=0.0) * output
    tl.store(new_ptr + (token.to(tl.int64) * S + stream) * D + column, x.to(new_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_tokens", "blocks", "parts_stride", "parts_token_stride"])
def _out(
    parts_ptr, streams_ptr, post_ptr, comb_ptr, fn_ptr, new_ptr, dots_ptr,
    num_tokens, blocks, parts_stride, parts_token_stride, token_stride, stream_stride,
    S: tl.constexpr, D: tl.constexpr, M: tl.constexpr, TOKENS: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
    UNIT: tl.constexpr, NUM_PARTS: tl.constexpr,
):  # fmt: skip
    fn = _load_fn(fn_ptr, S, D, M, CHUNK, ROWS)
    first = tl.program_id(1) * blocks * TOKENS
    last = tl.minimum(first + blocks * TOKENS, num_tokens)
    while first < last:
        _store_streams(
            parts_ptr, streams_ptr, post_ptr, comb_ptr, new_ptr, first, num_tokens,
            parts_stride, parts_token_stride, token_stride, stream_stride, S, D, TOKENS, CHUNK, UNIT, NUM_PARTS,
        )  # fmt: skip
        # Reading its own streams back gives each thread what its products need; handing them over in registers makes
        # the compiler repeat their sums for each arrangement.
        tl.debug_barrier()
        _store_dots(new_ptr, fn, dots_ptr, first, num_tokens, S * D, D, S, D, M, TOKENS, CHUNK, ROWS)
        first += TOKENS


def mix_dots(streams_TSD: torch.Tensor, fn_MX: torch.Tensor) -> torch.Tensor:
    """See ``mix_dots``."""
    num_tokens, num_streams, width = streams_TSD.shape
    _check(streams_TSD, fn_MX)
    dots_TNP = _empty_dots(streams_TSD, fn_MX)
    if num_tokens:
        blocks = _blocks_per_program(num_tokens)
        _dots[(dots_TNP.shape[2], ceil_div(num_tokens, blocks * TOKENS))](
            streams_TSD, fn_MX, dots_TNP, num_tokens, blocks, streams_TSD.stride(0), streams_TSD.stride(1),
            S=num_streams, D=width, M=len(fn_MX), TOKENS=TOKENS, CHUNK=CHUNK, ROWS=_rows(fn_MX),
            num_warps=NUM_WARPS,
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
        blocks, strides = _blocks_per_program(num_tokens), part_strides(parts_QTD)
        _out[(dots_TNP.shape[2], ceil_div(num_tokens, blocks * TOKENS))](
            parts_QTD, streams_TSD, post_TS, comb_TSS, fn_MX, new_TSD, dots_TNP,
            num_tokens, blocks, strides.part, strides.token, streams_TSD.stride(0), streams_TSD.stride(1),
            S=num_streams, D=width, M=len(fn_MX), TOKENS=TOKENS, CHUNK=CHUNK, ROWS=_rows(fn_MX),
            UNIT=strides.unit, NUM_PARTS=parts_QTD.shape[0], num_warps=NUM_WARPS,
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


def _rows(fn_MX: torch.Tensor) -> int:
    return max(16, triton.next_power_of_2(len(fn_MX)))


def _blocks_per_program(num_tokens: int) -> int:
    return 1 if num_tokens <= FEW_TOKENS else BLOCKS_OF_MANY
