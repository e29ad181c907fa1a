"""Sparse attention in Triton: partial results over shares of the keys; ``kernel_combine`` merges them.

One program per (token, block of heads, share of the token's keys). K and V are one vector, so a block of rows is
gathered and decoded once for both products. Rows are read as two tiles, the un-rotated dims and the rotated ones,
because fp8 rows store them differently.

Shares follow from the token's own number of keys and from the widths of the lists, so a token's result does not
depend on the pass around it.
"""

import torch
import triton
import triton.language as tl

from backends.deepseek_v4.ops.sparse_attention.kernel_combine import combine
from backends.deepseek_v4.ops.sparse_attention.row_source import load_rows, row_source
from backends.deepseek_v4.ops.sparse_attention.values import KeyList
from backends.deepseek_v4.pass_values import SlotList
from specdec.ops.early import EarlyKernel, begin

HEADS_PER_BLOCK = 16
KEYS_PER_BLOCK = 64
# float32 products run on the ordinary cores, which hold both operands in registers.
KEYS_PER_BLOCK_FP32 = 16
# (warps, stages): rows that are stored in bf16 go to the matrix units as they are; others are decoded on the way.
STORED, DECODED = (4, 2), (8, 3)
MAX_SPLITS = 16
FEW_COLUMNS = 320
# Tokens are computed in groups whose partial results stay below this.
PARTIAL_BYTES = 1 << 28
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _attend_block(
    top, total, acc, acc_rope, q_tile, q_rope, slots_ptr, length, block, scale, values_ptr, halves_ptr,
    NOPE: tl.constexpr, ROPE: tl.constexpr, NOPE_BLOCK: tl.constexpr, ROPE_BLOCK: tl.constexpr,
    ROWS_PER_PAGE: tl.constexpr, PAGE_BYTES: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add one block of a list to a running softmax."""
    place = block * BLOCK_K + tl.arange(0, BLOCK_K)
    slots = tl.load(slots_ptr + place, mask=place < length, other=-1)
    keys, rope = load_rows(
        values_ptr, halves_ptr, slots, NOPE, ROPE, NOPE_BLOCK, ROPE_BLOCK, ROWS_PER_PAGE, PAGE_BYTES, q_tile.dtype
    )
    scores = tl.dot(q_tile, tl.trans(keys), input_precision=PRECISION)
    scores = tl.dot(q_rope, tl.trans(rope), scores, input_precision=PRECISION)
    scores = tl.where((slots >= 0)[None, :], scores * scale, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, axis=1))
    # Blocks without any valid row leave the maximum at -inf; 0 stands in for it.
    level = tl.where(new_top == float("-inf"), 0.0, new_top)
    shrink = tl.exp2(top - level)
    weights = tl.exp2(scores - level[:, None])
    total = total * shrink + tl.sum(weights, axis=1)
    weights = weights.to(q_tile.dtype)
    acc = tl.dot(weights, keys, acc * shrink[:, None], input_precision=PRECISION)
    acc_rope = tl.dot(weights, rope, acc_rope * shrink[:, None], input_precision=PRECISION)
    return new_top, total, acc, acc_rope


@triton.jit
def _attend_blocks(
    top, total, acc, acc_rope, q_tile, q_rope, slots_ptr, length, first, last, scale, values_ptr, halves_ptr,
    NOPE: tl.constexpr, ROPE: tl.constexpr, NOPE_BLOCK: tl.constexpr, ROPE_BLOCK: tl.constexpr,
    ROWS_PER_PAGE: tl.constexpr, PAGE_BYTES: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Add the blocks ``first..last-1`` of a list to a running softmax."""
    if INTERPRETED:
        # The interpreter cannot count to a number that it has loaded; the compiler only overlaps counted loops.
        block = first
        while block < last:
            top, total, acc, acc_rope = _attend_block(
                top, total, acc, acc_rope, q_tile, q_rope, slots_ptr, length, block, scale, values_ptr, halves_ptr,
                NOPE, ROPE, NOPE_BLOCK, ROPE_BLOCK, ROWS_PER_PAGE, PAGE_BYTES, BLOCK_K, PRECISION,
            )  # fmt: skip
            block += 1
    else:
        for block in range(first, last):
            top, total, acc, acc_rope = _attend_block(
                top, total, acc, acc_rope, q_tile, q_rope, slots_ptr, length, block, scale, values_ptr, halves_ptr,
                NOPE, ROPE, NOPE_BLOCK, ROPE_BLOCK, ROWS_PER_PAGE, PAGE_BYTES, BLOCK_K, PRECISION,
            )  # fmt: skip
    return top, total, acc, acc_rope


@EarlyKernel
@triton.jit
def _partial(
    q_ptr, parts_ptr, lse_ptr, num_heads, q_stride_t, q_stride_h, scale,
    window_slots, window_lens, window_values, window_halves, window_stride,
    extra_slots, extra_lens, extra_values, extra_halves, extra_stride,
    WINDOW_ROWS: tl.constexpr, WINDOW_BYTES: tl.constexpr, EXTRA_ROWS: tl.constexpr, EXTRA_BYTES: tl.constexpr,
    NOPE: tl.constexpr, ROPE: tl.constexpr, NOPE_BLOCK: tl.constexpr, ROPE_BLOCK: tl.constexpr,
    SPLITS: tl.constexpr, HEAD_BLOCKS: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr, INTERPRETED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Partial result and log2 of the sum of weights of one share; both without the sink."""
    begin(EARLY)
    program = tl.program_id(0)
    token = (program // (HEAD_BLOCKS * SPLITS)).to(tl.int64)
    split = program // HEAD_BLOCKS % SPLITS
    heads = program % HEAD_BLOCKS * BLOCK_H + tl.arange(0, BLOCK_H)
    lse_at = lse_ptr + (token * SPLITS + split) * num_heads + heads

    window_len = tl.load(window_lens + token)
    window_blocks = tl.cdiv(window_len, BLOCK_K)
    extra_len = 0
    num_blocks = window_blocks
    if EXTRA_ROWS > 0:
        extra_len = tl.load(extra_lens + token)
        num_blocks += tl.cdiv(extra_len, BLOCK_K)
    share = tl.cdiv(num_blocks, SPLITS)
    first = split * share
    last = tl.minimum(first + share, num_blocks)
    if first >= last:
        tl.store(lse_at, tl.full([BLOCK_H], float("-inf"), tl.float32), mask=heads < num_heads)
        return

    dims = tl.arange(0, NOPE_BLOCK)
    rope_dims = tl.arange(0, ROPE_BLOCK)
    q_at = q_ptr + token * q_stride_t + heads[:, None].to(tl.int64) * q_stride_h
    real = (heads < num_heads)[:, None]
    q_tile = tl.load(q_at + dims[None, :], mask=real & (dims < NOPE)[None, :], other=0.0)
    q_rope = tl.load(q_at + NOPE + rope_dims[None, :], mask=real & (rope_dims < ROPE)[None, :], other=0.0)
    top = tl.full([BLOCK_H], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([BLOCK_H, NOPE_BLOCK], tl.float32)
    acc_rope = tl.zeros([BLOCK_H, ROPE_BLOCK], tl.float32)
    scale = scale * LOG2_E
    top, total, acc, acc_rope = _attend_blocks(
        top, total, acc, acc_rope, q_tile, q_rope, window_slots + token * window_stride, window_len,
        first, tl.minimum(last, window_blocks), scale, window_values, window_halves,
        NOPE, ROPE, NOPE_BLOCK, ROPE_BLOCK, WINDOW_ROWS, WINDOW_BYTES, BLOCK_K, PRECISION, INTERPRETED,
    )  # fmt: skip
    if EXTRA_ROWS > 0:
        top, total, acc, acc_rope = _attend_blocks(
            top, total, acc, acc_rope, q_tile, q_rope, extra_slots + token * extra_stride, extra_len,
            tl.maximum(first - window_blocks, 0), last - window_blocks, scale, extra_values, extra_halves,
            NOPE, ROPE, NOPE_BLOCK, ROPE_BLOCK, EXTRA_ROWS, EXTRA_BYTES, BLOCK_K, PRECISION, INTERPRETED,
        )  # fmt: skip

    divisor = tl.where(total > 0, total, 1.0)[:, None]
    part_at = parts_ptr + ((token * SPLITS + split) * num_heads + heads[:, None]) * (NOPE + ROPE)
    tl.store(part_at + dims[None, :], acc / divisor, mask=real & (dims < NOPE)[None, :])
    tl.store(part_at + NOPE + rope_dims[None, :], acc_rope / divisor, mask=real & (rope_dims < ROPE)[None, :])
    tl.store(lse_at, top + tl.log2(total), mask=heads < num_heads)


def num_splits(num_columns: int) -> int:
    """Shares that the keys of a token are cut into, for slot lists of ``num_columns`` columns together.

    A share is about 128 keys, fewer where there are few keys: at batch 1 the shares are all the parallelism there
    is besides the heads, while at larger batches every share costs a partial result.
    """
    return min(MAX_SPLITS, triton.cdiv(num_columns, 64 if num_columns <= FEW_COLUMNS else 128))


def sparse_attention(
    q_THD: torch.Tensor,
    window: KeyList,
    extra: KeyList | None,
    sinks_H: torch.Tensor,
    *,
    scale: float,
    angles_T2R: torch.Tensor,
) -> torch.Tensor:
    """See the operator; two launches."""
    num_tokens, num_heads, head_dim = q_THD.shape
    if q_THD.stride(-1) != 1:
        q_THD = q_THD.contiguous()
    out_TX = torch.empty(num_tokens, num_heads * head_dim, dtype=q_THD.dtype, device=q_THD.device)
    columns = window.slots.slots_TK.shape[1] + (0 if extra is None else extra.slots.slots_TK.shape[1])
    splits = num_splits(columns)
    step = max(1, PARTIAL_BYTES // (4 * splits * num_heads * head_dim))
    for first in range(0, num_tokens, step):
        some = slice(first, first + step)
        parts_TSHD, lse_TSH = _partials(
            q_THD[some], _rows_of(window, some), None if extra is None else _rows_of(extra, some),
            splits=splits, scale=scale, rope=2 * angles_T2R.shape[2],
        )  # fmt: skip
        combine(parts_TSHD, lse_TSH, sinks_H, angles_T2R[some], out_TX[some])
    return out_TX


def _rows_of(keys: KeyList, tokens: slice) -> KeyList:
    slots = SlotList(slots_TK=keys.slots.slots_TK[tokens], lens_T=keys.slots.lens_T[tokens])
    return KeyList(buffer=keys.buffer, rows=keys.rows, slots=slots)


def _partials(
    q_THD: torch.Tensor, window: KeyList, extra: KeyList | None, *, splits: int, scale: float, rope: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Partial results float32 [T, S, H, D] and log2 sums of weights [T, S, H]."""
    num_tokens, num_heads, head_dim = q_THD.shape
    parts_TSHD = torch.empty(num_tokens, splits, num_heads, head_dim, dtype=torch.float32, device=q_THD.device)
    lse_TSH = torch.empty(num_tokens, splits, num_heads, dtype=torch.float32, device=q_THD.device)
    first = row_source(window.buffer, window.rows)
    # Without a second list the kernel never touches its pointers.
    other = window if extra is None else extra
    second = row_source(other.buffer, other.rows)
    exact = q_THD.dtype == torch.float32
    head_blocks = triton.cdiv(num_heads, HEADS_PER_BLOCK)
    nope = head_dim - rope
    is_stored = not exact and first.values.dtype == q_THD.dtype
    num_warps, num_stages = STORED if is_stored else DECODED
    _partial[(num_tokens * head_blocks * splits,)](
        q_THD, parts_TSHD, lse_TSH, num_heads, q_THD.stride(0), q_THD.stride(1), scale,
        window.slots.slots_TK, window.slots.lens_T, first.values, first.halves, window.slots.slots_TK.stride(0),
        other.slots.slots_TK, other.slots.lens_T, second.values, second.halves, other.slots.slots_TK.stride(0),
        WINDOW_ROWS=first.rows_per_page, WINDOW_BYTES=first.page_bytes,
        EXTRA_ROWS=0 if extra is None else second.rows_per_page, EXTRA_BYTES=second.page_bytes,
        NOPE=nope, ROPE=rope, NOPE_BLOCK=max(16, triton.next_power_of_2(nope)),
        ROPE_BLOCK=max(16, triton.next_power_of_2(rope)),
        SPLITS=splits, HEAD_BLOCKS=head_blocks, BLOCK_H=HEADS_PER_BLOCK,
        BLOCK_K=KEYS_PER_BLOCK_FP32 if exact else KEYS_PER_BLOCK,
        PRECISION="ieee" if exact else "tf32",
        INTERPRETED=triton.knobs.runtime.interpret, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    return parts_TSHD, lse_TSH
