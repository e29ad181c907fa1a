"""The selection in Triton: radix search of the topk-th largest score, then one ordered pass; one program a token.

A score becomes an unsigned key of the same order. Eight rounds, from the highest four bits down, count the keys that
share the bits found so far by their next four bits, and so find the key of rank ``topk`` and how many of its equals
are wanted. The last pass takes the keys above it and the first of its equals, in order of the rows.
"""

import torch
import triton
import triton.language as tl

from backends.deepseek_v4.cache_groups import AttentionKind
from backends.deepseek_v4.ops.device.pages import page_slots
from backends.deepseek_v4.pass_values import SLOT_COLUMNS, PassIndices, SlotList
from specdec.api import GroupTable

# Up to this many columns the keys of a token stay in registers.
COLUMNS_PER_BLOCK = 4096
DIGIT_BITS = tl.constexpr(4)
DIGITS = tl.constexpr(16)
ROUNDS = tl.constexpr(8)


@triton.jit
def _load_keys(scores_ptr, columns, visible):
    """Keys (uint32) whose order is that of the scores; 0 and -0 share one, NaN is above all."""
    scores = tl.load(scores_ptr + columns, mask=columns < visible, other=0.0)
    scores = tl.where(scores == 0.0, 0.0, scores)
    bits = scores.to(tl.uint32, bitcast=True)
    keys = tl.where(bits >= 0x80000000, bits ^ 0xFFFFFFFF, bits ^ 0x80000000)
    return tl.where(scores != scores, 0xFFFFFFFF, keys).to(tl.uint32)


@triton.jit
def _count_digits(keys, wanted, prefix, ROUND: tl.constexpr):
    """How many of the ``wanted`` keys that begin with ``prefix`` have each next digit."""
    SHIFT: tl.constexpr = 32 - DIGIT_BITS * (ROUND + 1)
    if ROUND > 0:
        wanted = wanted & ((keys >> (SHIFT + DIGIT_BITS)) == prefix)
    digits = ((keys >> SHIFT) & (DIGITS - 1)).to(tl.int32)
    return tl.histogram(digits, DIGITS, mask=wanted)


@triton.jit
def _find_key(scores_ptr, visible, topk, ONE_BLOCK: tl.constexpr, BLOCK: tl.constexpr):
    """Key of the topk-th largest of the visible scores, and how many equal to it are among the topk largest."""
    prefix = tl.zeros([], tl.uint32)
    missing = topk
    digit = tl.arange(0, DIGITS)
    columns = tl.arange(0, BLOCK)
    if ONE_BLOCK:
        keys = _load_keys(scores_ptr, columns, visible)
    for each in tl.static_range(ROUNDS):
        if ONE_BLOCK:
            counts = _count_digits(keys, columns < visible, prefix, each)
        else:
            counts = tl.zeros([DIGITS], tl.int32)
            start = visible * 0
            while start < visible:
                block = _load_keys(scores_ptr, start + columns, visible)
                counts += _count_digits(block, start + columns < visible, prefix, each)
                start += BLOCK
        above = tl.sum(counts, axis=0) - tl.cumsum(counts, axis=0)
        here = (above < missing) & (above + counts >= missing)
        prefix = (prefix << DIGIT_BITS) | tl.sum(tl.where(here, digit, 0), axis=0).to(tl.uint32)
        missing -= tl.sum(tl.where(here, above, 0), axis=0)
    return prefix, missing


@triton.jit
def _select(
    scores_ptr, visible_ptr, reqs_ptr, table_ptr, slots_ptr, lens_ptr,
    num_columns, score_stride, table_stride, table_columns,
    TOPK: tl.constexpr, WIDTH: tl.constexpr, WIDTH_BLOCK: tl.constexpr, ROWS_PER_PAGE: tl.constexpr,
    ONE_BLOCK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    visible = tl.minimum(tl.load(visible_ptr + token), num_columns)
    req = tl.load(reqs_ptr + token)
    place = tl.arange(0, WIDTH_BLOCK)
    line_ptr = slots_ptr + token * WIDTH
    if visible <= TOPK:
        slots = page_slots(
            table_ptr, table_stride, table_columns, req, 0, tl.where(place < visible, place, -1), ROWS_PER_PAGE
        )
        kept = (slots >= 0).to(tl.int32)
        tl.store(line_ptr + tl.cumsum(kept, axis=0) - 1, slots, mask=kept > 0)
        count = tl.sum(kept, axis=0)
    else:
        scores_ptr += token * score_stride
        key, equals = _find_key(scores_ptr, visible, visible * 0 + TOPK, ONE_BLOCK, BLOCK)
        count = visible * 0
        seen = visible * 0
        start = visible * 0
        while start < visible:
            columns = start + tl.arange(0, BLOCK)
            keys = _load_keys(scores_ptr, columns, visible)
            inside = columns < visible
            equal = (inside & (keys == key)).to(tl.int32)
            first = seen + tl.cumsum(equal, axis=0) <= equals
            taken = (inside & (keys > key)) | ((equal > 0) & first)
            rows = tl.where(taken, columns, -1)
            slots = page_slots(table_ptr, table_stride, table_columns, req, 0, rows, ROWS_PER_PAGE)
            kept = (slots >= 0).to(tl.int32)
            tl.store(line_ptr + count + tl.cumsum(kept, axis=0) - 1, slots, mask=kept > 0)
            count += tl.sum(kept, axis=0)
            seen += tl.sum(equal, axis=0)
            start += BLOCK
    tl.store(line_ptr + place, tl.full([WIDTH_BLOCK], -1, tl.int32), mask=(place >= count) & (place < WIDTH))
    tl.store(lens_ptr + token, count)


def select_rows(
    scores_TC: torch.Tensor, indices: PassIndices, table: GroupTable, rows_per_page: int, *, topk: int
) -> SlotList:
    """See the operator."""
    num_tokens, num_columns = scores_TC.shape
    assert scores_TC.dtype == torch.float32 and scores_TC.stride(1) == 1, "rows of float32 scores"
    width = triton.cdiv(topk, SLOT_COLUMNS) * SLOT_COLUMNS
    slots_TK = torch.empty(num_tokens, width, dtype=torch.int32, device=scores_TC.device)
    lens_T = torch.empty(num_tokens, dtype=torch.int32, device=scores_TC.device)
    if num_tokens:
        block = min(COLUMNS_PER_BLOCK, triton.next_power_of_2(max(num_columns, 32)))
        _select[(num_tokens,)](
            scores_TC, indices.visible[AttentionKind.CSA], indices.reqs_T, table.pages_BC, slots_TK, lens_T,
            num_columns, scores_TC.stride(0), table.pages_BC.stride(0), table.pages_BC.shape[1],
            TOPK=topk, WIDTH=width, WIDTH_BLOCK=triton.next_power_of_2(width), ROWS_PER_PAGE=rows_per_page,
            ONE_BLOCK=num_columns <= block, BLOCK=block, num_warps=8 if block >= 1024 else 4,
        )  # fmt: skip
    return SlotList(slots_TK=slots_TK, lens_T=lens_T)
