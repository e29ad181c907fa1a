"""Whole-sequence EAGLE-3: the teacher-forced pass and the recursive depths that drafting several tokens runs.

This is the training-time test of arXiv:2503.01840: at depth j the head is fed its own states of depth j - 1, one slot
to the left. Keys of slots before the draft come from depth 1 (fused target states), those within it from the depths
between.
"""

import torch
import torch.nn.functional as F

from backends.eagle3.model import Attend, Eagle3Model


def dense_eagle3(
    model: Eagle3Model, hidden_BLX: torch.Tensor, next_tokens_BL: torch.Tensor, *, depth: int = 1
) -> tuple[torch.Tensor, ...]:
    """Own states [B, L, D] of depths 1..``depth``, teacher-forced with ``next_tokens_BL`` at every depth.

    hidden_BLX      states of the three target layers, positions 0..L-1
    next_tokens_BL  int64; entry i is the token at position i + 1

    Slot i of every depth predicts token i + 2; slots below ``j - 1`` of depth j have no draft that long behind them and
    hold finite values to be ignored.
    """
    positions_L = torch.arange(next_tokens_BL.shape[1], device=next_tokens_BL.device)
    made: list[tuple[torch.Tensor, torch.Tensor]] = []
    previous, outputs = model.fuse(hidden_BLX), []
    for _ in range(depth):
        outputs.append(model(previous, next_tokens_BL, positions_L, _attend(tuple(made), made)))
        previous = shift(outputs[-1], 1)
    return tuple(outputs)


def _attend(earlier: tuple[tuple[torch.Tensor, torch.Tensor], ...], made: list) -> Attend:
    """Attention of the next depth given keys and values of all before; appends its own to ``made``."""

    def run(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        made.append((key, value))
        first_key, first_value = earlier[0] if earlier else (key, value)
        group, length = query.shape[2] // key.shape[2], query.shape[1]
        scale = query.shape[-1] ** -0.5
        many = [x.repeat_interleave(group, dim=2) for x in (first_key, first_value)]
        scores_BHLK = torch.einsum("blhd,bkhd->bhlk", query, many[0]) * scale
        # A draft of depth j at slot p began at slot p - j + 1; its key of depth m lies at slot p - j + m.
        depth = len(earlier) + 1
        slots = torch.arange(length, device=query.device)
        hidden_LK = slots[None, :] > slots[:, None] - (depth - 1)
        scores_BHLK = scores_BHLK.masked_fill(hidden_LK, torch.finfo(scores_BHLK.dtype).min)
        if not earlier:
            return torch.einsum("bhlk,bkhd->blhd", scores_BHLK.softmax(-1), many[1])
        own = [*earlier[1:], (key, value)]
        steps = range(len(own) - 1, -1, -1)
        keys = torch.stack([shift(k, by) for (k, _), by in zip(own, steps, strict=True)], dim=2)
        values = torch.stack([shift(v, by) for (_, v), by in zip(own, steps, strict=True)], dim=2)
        keys, values = (x.repeat_interleave(group, dim=3) for x in (keys, values))
        own_scores = torch.einsum("blhd,blmhd->bhlm", query, keys) * scale
        weights = torch.cat((scores_BHLK, own_scores), dim=-1).softmax(-1)
        shared_weights, own_weights = weights.split([length, len(own)], dim=-1)
        out = torch.einsum("bhlk,bkhd->blhd", shared_weights, many[1])
        return out + torch.einsum("bhlm,blmhd->blhd", own_weights, values)

    return run


def shift(x: torch.Tensor, slots: int) -> torch.Tensor:
    """``x`` [B, L, ...] moved ``slots`` to the right along L; the first slots are zero."""
    if slots == 0:
        return x
    padding = [0, 0] * (x.dim() - 2) + [slots, 0]
    return F.pad(x, padding)[:, : x.shape[1]]
