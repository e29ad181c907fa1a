"""route in Triton: one launch, one warp for each token.

The chosen logits are read a second time to weigh them, so that learned and hash layers share everything but the choice.
"""

import torch
import triton
import triton.language as tl

from backends.deepseek_v4.ops.route.values import Routing
from specdec.ops.early import EarlyKernel, begin

# The smallest normal float32: floor of the softplus, as in ``moe.affinities``.
TINY = tl.constexpr(torch.finfo(torch.float32).tiny)
# Above it softplus is the identity, as in torch.
SOFTPLUS_THRESHOLD = tl.constexpr(20.0)
# Below the key of every value.
LOWEST = tl.constexpr(-(1 << 31))


@triton.jit
def _scores(logits_ptr, part_stride, places, inside, NUM_PARTS: tl.constexpr):
    """``sqrt(softplus(logit))`` at places of a token's logits; every rounding is that of a single place."""
    logits = tl.load(logits_ptr + places, mask=inside, other=0.0)
    for part in tl.static_range(1, NUM_PARTS):
        logits += tl.load(logits_ptr + part * part_stride + places, mask=inside, other=0.0)
    powers = tl.exp(tl.minimum(logits, SOFTPLUS_THRESHOLD))
    # log(1 + x) without the loss of small x: the error of rounding 1 + x cancels in the quotient.
    above_one = 1.0 + powers
    logarithms = tl.log(above_one) * (powers / tl.where(above_one == 1.0, 1.0, above_one - 1.0))
    softplus = tl.where(logits > SOFTPLUS_THRESHOLD, logits, tl.where(above_one == 1.0, powers, logarithms))
    return tl.sqrt_rn(tl.maximum(softplus, TINY))


@triton.jit
def _choose(scores, bias_ptr, columns, inside, picks, K: tl.constexpr):
    """Ids of the K largest biased scores, best first, the lowest id among equal ones."""
    values = scores + tl.load(bias_ptr + columns, mask=inside, other=0.0)
    # Whatever a padding token computes, even NaN, its ids are experts.
    bits = tl.where(values == values, values, float("-inf")).to(tl.int32, bitcast=True)
    # Integers of the same order: a warp finds the largest of them in one instruction.
    keys = tl.where(inside, bits ^ ((bits >> 31) & 0x7FFFFFFF), LOWEST)
    ids = picks * 0
    for pick in tl.static_range(K):
        best = tl.min(tl.where(keys == tl.max(keys, axis=0), columns, columns.shape[0]), axis=0)
        ids = tl.where(picks == pick, best, ids)
        keys = tl.where(columns == best, LOWEST, keys)
    return ids


@EarlyKernel
@triton.jit(do_not_specialize=["part_stride", "tokens_ptr", "tokens_stride"])
def _route(
    parts_ptr, part_stride, token_stride, expert_stride, tokens_ptr, tokens_stride, bias_ptr,
    table_ptr, table_stride, table_rows, ids_ptr, weights_ptr, factor,
    NUM_PARTS: tl.constexpr, E: tl.constexpr, K: tl.constexpr, NORMALISE: tl.constexpr, IS_HASH: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    token = tl.program_id(0)
    logits_ptr = parts_ptr + token * token_stride
    picks = tl.arange(0, BLOCK_K)
    chosen = picks < K
    if IS_HASH:
        row = tl.load(tokens_ptr + token * tokens_stride)
        row = tl.minimum(tl.maximum(row, 0), table_rows - 1)
        ids = tl.load(table_ptr + row * table_stride + picks, mask=chosen, other=0).to(tl.int32)
    else:
        columns = tl.arange(0, BLOCK_E)
        inside = columns < E
        scores = _scores(logits_ptr, part_stride, columns * expert_stride, inside, NUM_PARTS)
        ids = _choose(scores, bias_ptr, columns, inside, picks, K)
    weights = tl.where(chosen, _scores(logits_ptr, part_stride, ids * expert_stride, chosen, NUM_PARTS), 0.0)
    if NORMALISE:
        weights = weights / tl.maximum(tl.sum(weights, axis=0), TINY)
    tl.store(ids_ptr + token * K + picks, ids, mask=chosen)
    tl.store(weights_ptr + token * K + picks, weights * factor, mask=chosen)


def route(
    parts_PTE: torch.Tensor,
    tokens_T: torch.Tensor,
    *,
    bias_E: torch.Tensor | None,
    expert_table_Vk: torch.Tensor | None,
    k: int,
    normalise: bool,
    factor: float,
) -> Routing:
    """See ``route`` of the package."""
    num_parts, num_tokens, num_experts = parts_PTE.shape
    ids_Tk = torch.empty((num_tokens, k), dtype=torch.int32, device=parts_PTE.device)
    weights_Tk = torch.empty((num_tokens, k), dtype=torch.float32, device=parts_PTE.device)
    is_hash = expert_table_Vk is not None
    table = expert_table_Vk.contiguous() if is_hash else tokens_T
    if num_tokens:
        _route[(num_tokens,)](
            parts_PTE, *parts_PTE.stride(), tokens_T, tokens_T.stride(0), parts_PTE if is_hash else bias_E.contiguous(),
            table, k if is_hash else 0, table.shape[0] if is_hash else 0, ids_Tk, weights_Tk, float(factor),
            NUM_PARTS=num_parts, E=num_experts, K=k, NORMALISE=normalise, IS_HASH=is_hash,
            BLOCK_E=triton.next_power_of_2(num_experts), BLOCK_K=triton.next_power_of_2(k), num_warps=1,
        )  # fmt: skip
    return Routing(ids_Tk=ids_Tk, weights_Tk=weights_Tk)
