"""The selection in Triton: blocks of columns are narrowed to their own best until few candidates are left.

A score becomes an unsigned key of the same order, and a program holds a block of keys in registers. It looks for a
bound that exactly ``topk`` keys reach, by counting how many reach two guesses: first in growing steps down from the
largest key, then in thirds of what is left. Where equal keys straddle every bound, the first of them are taken.

Up to two blocks of columns are one launch of a program a token. More columns are narrowed first by a program for each
token and block: the topk largest of all are among the topk largest of each block. Candidates keep the order of their
columns, so the lowest of equals is found as if nothing had been narrowed. How often that happens follows from the
number of columns.
"""

import torch
import triton
import triton.language as tl

from backends.deepseek_v4.cache_groups import AttentionKind
from backends.deepseek_v4.ops.device.pages import page_slots
from backends.deepseek_v4.pass_values import SLOT_COLUMNS, PassIndices, SlotList
from specdec.api import GroupTable
from specdec.ops.early import EarlyKernel, begin, wait_for_earlier

COLUMNS_PER_BLOCK = 4096
# A last program over twice as many costs less than one more launch.
BLOCKS_OF_LAST = 2
COLUMNS_PER_WARP = 512
# Key of -inf, the lowest; hidden columns get 0.
LOWEST_KEY = tl.constexpr(0x007FFFFF)
# Half a binade: the best few of many scores rarely spread over more than four.
FIRST_STEP = tl.constexpr(1 << 22)
LARGEST_STEP = tl.constexpr(1 << 30)


@triton.jit
def _keys(scores, visible):
    """Keys (uint32) whose order is that of the scores; 0 and -0 share one, NaN is above all."""
    scores = tl.where(scores == 0.0, 0.0, scores)
    bits = scores.to(tl.uint32, bitcast=True)
    keys = tl.where(bits >= 0x80000000, bits ^ 0xFFFFFFFF, bits ^ 0x80000000)
    keys = tl.where(scores != scores, 0xFFFFFFFF, keys)
    return tl.where(visible, keys, 0).to(tl.uint32)


@triton.jit
def _largest(keys, num_keys, topk):
    """Which of the ``num_keys`` keys above 0 are the ``topk`` largest, the first of equals; all if there are fewer."""
    # The bound lies in low..high: at least topk keys reach low, and fewer reach what is above high.
    low = tl.full([], LOWEST_KEY, tl.uint32)
    high = tl.max(keys, axis=0)
    step = tl.full([], FIRST_STEP, tl.uint32)
    reached = num_keys
    while (low < high) & (reached > topk):
        # Two guesses are counted at once, in the halves of a word.
        step = tl.minimum(step, (high - low) // 3)
        upper, lower = high - step, high - 2 * step
        counts = tl.sum((keys >= upper).to(tl.int32) + ((keys >= lower).to(tl.int32) << 16), axis=0)
        count_upper, count_lower = counts & 0xFFFF, counts >> 16
        above, between = count_upper >= topk, (count_upper < topk) & (count_lower >= topk)
        reached = tl.where(above, count_upper, tl.where(between, count_lower, reached))
        low = tl.where(above, upper, tl.where(between, lower, low))
        high = tl.where(above, high, tl.where(between, upper - 1, lower - 1))
        step = tl.where(above | between | (step >= LARGEST_STEP), LARGEST_STEP, step << 1).to(tl.uint32)
    if reached > topk:
        above = keys > low
        equal = (keys == low).to(tl.int32)
        missing = topk - tl.sum(above.to(tl.int32), axis=0)
        taken = above | ((equal > 0) & (tl.cumsum(equal, axis=0) <= missing))
    else:
        taken = keys >= low
    return taken


@triton.jit
def _candidates(num_columns, TOPK: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr):
    """How many of ``num_columns`` columns are left after LEVELS narrowings."""
    for _ in tl.static_range(LEVELS):
        num_columns = num_columns // BLOCK * TOPK + tl.minimum(num_columns % BLOCK, TOPK)
    return num_columns


@triton.jit
def _load_columns(columns_ptr, place, inside):
    """Columns that candidates stand for; None: candidates are the columns themselves."""
    if columns_ptr is None:
        return place
    else:
        return tl.load(columns_ptr + place, mask=inside, other=0)


@EarlyKernel
@triton.jit
def _narrow(
    scores_ptr, columns_ptr, visible_ptr, best_ptr, best_columns_ptr, num_columns, score_stride, best_stride,
    TOPK: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Store the topk largest scores of a block and their columns."""
    begin(EARLY)
    token, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    visible = tl.minimum(tl.load(visible_ptr + token), num_columns)
    seen = _candidates(visible, TOPK, BLOCK, LEVELS)
    first = block * BLOCK
    if (visible > TOPK) & (first < seen):
        place = first + tl.arange(0, BLOCK)
        inside = place < seen
        line = token * score_stride
        scores = tl.load(scores_ptr + line + place, mask=inside, other=0.0)
        if columns_ptr is not None:
            columns_ptr += line
        columns = _load_columns(columns_ptr, place, inside)
        taken = _largest(_keys(scores, inside), tl.minimum(seen - first, BLOCK), TOPK)
        target = token * best_stride + block * TOPK + tl.cumsum(taken.to(tl.int32), axis=0) - 1
        tl.store(best_ptr + target, scores, mask=taken)
        tl.store(best_columns_ptr + target, columns, mask=taken)


@triton.jit
def _store_slots(line_ptr, rows, table_ptr, table_stride, table_columns, req, ROWS_PER_PAGE: tl.constexpr):
    """Store the slots of ``rows`` (-1: none) that have a page side by side; their number."""
    slots = page_slots(table_ptr, table_stride, table_columns, req, 0, rows, ROWS_PER_PAGE)
    kept = (slots >= 0).to(tl.int32)
    tl.store(line_ptr + tl.cumsum(kept, axis=0) - 1, slots, mask=kept > 0)
    return tl.sum(kept, axis=0)


@EarlyKernel
@triton.jit
def _select(
    scores_ptr, columns_ptr, visible_ptr, reqs_ptr, table_ptr, slots_ptr, lens_ptr,
    num_columns, score_stride, table_stride, table_columns,
    TOPK: tl.constexpr, WIDTH: tl.constexpr, WIDTH_BLOCK: tl.constexpr, ROWS_PER_PAGE: tl.constexpr,
    BLOCK: tl.constexpr, CANDIDATES: tl.constexpr, LEVELS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait_for_earlier(EARLY)
    token = tl.program_id(0).to(tl.int64)
    visible = tl.minimum(tl.load(visible_ptr + token), num_columns)
    req = tl.load(reqs_ptr + token)
    place = tl.arange(0, WIDTH_BLOCK)
    line_ptr = slots_ptr + token * WIDTH
    if visible <= TOPK:
        rows = tl.where(place < visible, place, -1)
        count = _store_slots(line_ptr, rows, table_ptr, table_stride, table_columns, req, ROWS_PER_PAGE)
    else:
        seen = _candidates(visible, TOPK, BLOCK, LEVELS)
        candidate = tl.arange(0, CANDIDATES)
        inside = candidate < seen
        line = token * score_stride
        scores = tl.load(scores_ptr + line + candidate, mask=inside, other=0.0)
        if columns_ptr is not None:
            columns_ptr += line
        columns = _load_columns(columns_ptr, candidate, inside)
        best = tl.where(_largest(_keys(scores, inside), seen, TOPK), columns, -1)
        count = _store_slots(line_ptr, best, table_ptr, table_stride, table_columns, req, ROWS_PER_PAGE)
    tl.store(line_ptr + place, tl.full([WIDTH_BLOCK], -1, tl.int32), mask=(place >= count) & (place < WIDTH))
    tl.store(lens_ptr + token, count)


def select_rows(
    scores_TC: torch.Tensor,
    indices: PassIndices,
    table: GroupTable,
    rows_per_page: int,
    *,
    topk: int,
    block: int = COLUMNS_PER_BLOCK,
) -> SlotList:
    """See the operator; ``block``, a power of two, is how many columns a program narrows."""
    num_tokens, num_columns = scores_TC.shape
    assert scores_TC.dtype == torch.float32 and scores_TC.stride(1) == 1, "rows of float32 scores"
    assert num_columns <= BLOCKS_OF_LAST * block or 2 * topk <= block, f"{topk} rows of {block} columns narrow nothing"
    width = triton.cdiv(topk, SLOT_COLUMNS) * SLOT_COLUMNS
    slots_TK = torch.empty(num_tokens, width, dtype=torch.int32, device=scores_TC.device)
    lens_T = torch.empty(num_tokens, dtype=torch.int32, device=scores_TC.device)
    if not num_tokens:
        return SlotList(slots_TK=slots_TK, lens_T=lens_T)
    visible_T, columns_TC, levels = indices.visible[AttentionKind.CSA], None, 0
    while scores_TC.shape[1] > BLOCKS_OF_LAST * block:
        num_blocks = triton.cdiv(scores_TC.shape[1], block)
        best_TC = torch.empty(num_tokens, num_blocks * topk, dtype=torch.float32, device=scores_TC.device)
        best_columns_TC = torch.empty_like(best_TC, dtype=torch.int32)
        _narrow[(num_tokens, num_blocks)](
            scores_TC, columns_TC, visible_T, best_TC, best_columns_TC, num_columns,
            scores_TC.stride(0), best_TC.stride(0), TOPK=topk, BLOCK=block, LEVELS=levels,
            num_warps=_num_warps(block),
        )  # fmt: skip
        scores_TC, columns_TC, levels = best_TC, best_columns_TC, levels + 1
    candidates = triton.next_power_of_2(max(scores_TC.shape[1], 32))
    _select[(num_tokens,)](
        scores_TC, columns_TC, visible_T, indices.reqs_T, table.pages_BC, slots_TK, lens_T,
        num_columns, scores_TC.stride(0), table.pages_BC.stride(0), table.pages_BC.shape[1],
        TOPK=topk, WIDTH=width, WIDTH_BLOCK=triton.next_power_of_2(width), ROWS_PER_PAGE=rows_per_page,
        BLOCK=block, CANDIDATES=candidates, LEVELS=levels, num_warps=_num_warps(candidates),
    )  # fmt: skip
    return SlotList(slots_TK=slots_TK, lens_T=lens_T)


def _num_warps(columns: int) -> int:
    return max(4, columns // COLUMNS_PER_WARP)
