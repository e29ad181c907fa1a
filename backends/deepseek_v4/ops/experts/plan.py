"""Which program of the expert kernels works on what: pairs of token and expert, sorted by expert and cut into blocks.

A pair is ``token * k + place``. Everything stays on the device; the host bounds the number of blocks by the number of
pairs, and blocks that are not needed have no pairs.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from backends.deepseek_v4.ops.route.values import Routing
from specdec.ops.early import EarlyKernel, begin

PAIRS_PER_PROGRAM = 16
PAIRS_PER_STEP = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocks:
    """Blocks of up to ``rows`` pairs of one expert each.

    table_3B  int32: expert, first of its pairs in ``pairs_N``, number of pairs (0: an empty block)
    pairs_N   int32 pairs by expert, then by number
    """

    table_3B: torch.Tensor
    pairs_N: torch.Tensor


@EarlyKernel
@triton.jit(do_not_specialize=["num_pairs", "num_blocks"])
def _plan(
    ids_ptr, table_ptr, pairs_ptr, num_pairs, num_experts, num_blocks,
    ROWS: tl.constexpr, EXPERTS: tl.constexpr, STEPS: tl.constexpr, STEP: tl.constexpr,
    PAIRS: tl.constexpr, BLOCKS: tl.constexpr, MOST_BLOCKS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Program 0 makes the table, the others find the place of PAIRS pairs each."""
    begin(EARLY)
    program = tl.program_id(0)
    if program == 0:
        expert = tl.arange(0, EXPERTS)
        count = tl.zeros((EXPERTS,), dtype=tl.int32)
        for step in range(STEPS):
            other = step * STEP + tl.arange(0, STEP)
            inside = other < num_pairs
            count += tl.histogram(tl.load(ids_ptr + other, mask=inside, other=0), EXPERTS, mask=inside)
        blocks = (count + ROWS - 1) // ROWS
        first_pair = tl.cumsum(count, axis=0) - count
        first_block = tl.cumsum(blocks, axis=0) - blocks
        for each in range(MOST_BLOCKS):
            place = first_block + each
            used = each < blocks
            tl.store(table_ptr + place, expert, mask=used)
            tl.store(table_ptr + num_blocks + place, first_pair + each * ROWS, mask=used)
            tl.store(table_ptr + 2 * num_blocks + place, tl.minimum(count - each * ROWS, ROWS), mask=used)
        place = tl.arange(0, BLOCKS)
        empty = (place >= tl.sum(blocks, axis=0)) & (place < num_blocks)
        for field in tl.static_range(3):
            tl.store(table_ptr + field * num_blocks + place, place * 0, mask=empty)
    else:
        pair = (program - 1) * PAIRS + tl.arange(0, PAIRS)
        inside = pair < num_pairs
        mine = tl.load(ids_ptr + pair, mask=inside, other=-1)
        rank = tl.zeros((PAIRS,), dtype=tl.int32)
        for step in range(STEPS):
            other = step * STEP + tl.arange(0, STEP)
            id = tl.load(ids_ptr + other, mask=other < num_pairs, other=num_experts)
            earlier = (id[None, :] == mine[:, None]) & (other[None, :] < pair[:, None])
            rank += tl.sum(((id[None, :] < mine[:, None]) | earlier).to(tl.int32), axis=1)
        tl.store(pairs_ptr + rank, pair, mask=inside)


def most_blocks(num_pairs: int, num_tokens: int, num_experts: int, rows: int) -> int:
    """Bound of the number of blocks: every expert has one that is not full, and full ones take ``rows`` pairs."""
    partly_full = min(num_pairs, num_experts)
    return min(partly_full + num_pairs // rows, num_experts * triton.cdiv(num_tokens, rows))


def plan_blocks(routing: Routing, num_experts: int, rows: int) -> Blocks:
    """Blocks of a routing, in one launch."""
    num_tokens, k = routing.ids_Tk.shape
    num_pairs = num_tokens * k
    assert routing.ids_Tk.is_contiguous(), "expert ids must be contiguous"
    num_blocks = most_blocks(num_pairs, num_tokens, num_experts, rows)
    ids = routing.ids_Tk
    table = torch.empty((3, num_blocks), device=ids.device, dtype=torch.int32)
    pairs = torch.empty(num_pairs, device=ids.device, dtype=torch.int32)
    _plan[(1 + triton.cdiv(num_pairs, PAIRS_PER_PROGRAM),)](
        ids, table, pairs, num_pairs, num_experts, num_blocks,
        ROWS=rows, EXPERTS=triton.next_power_of_2(num_experts),
        STEPS=triton.cdiv(num_pairs, PAIRS_PER_STEP), STEP=PAIRS_PER_STEP, PAIRS=PAIRS_PER_PROGRAM,
        BLOCKS=triton.next_power_of_2(num_blocks), MOST_BLOCKS=triton.cdiv(num_tokens, rows),
        num_warps=4,
    )  # fmt: skip
    return Blocks(table_3B=table, pairs_N=pairs)
