"""Attention of one segment: gathers the keys that a plan names and attends them with a sink.

Plain torch on any device; knows neither weights nor how slots came about. Letters: see ``plan_types``.
"""

import torch

from backends.deepseek_v4.plan_types import CompressedView, Reach, Segment
from backends.deepseek_v4.rows.format import RowFormat

HIDDEN = float("-inf")


def segment_keys(rows: RowFormat, buffer: torch.Tensor, slots_GK: torch.Tensor) -> torch.Tensor:
    """Keys [G, K, D] at slots that are all 0 or more."""
    return rows.take(buffer, slots_GK)


def selected_slots(view: CompressedView, selection_GMk: torch.Tensor) -> torch.Tensor:
    """Slots [G, M * k] of the rows that the queries of a GATHER view selected; -1 becomes row 0, which is masked."""
    return view.slots_GC.gather(1, selection_GMk.flatten(1).clamp(min=0))


def masked_bias(segment: Segment, view: CompressedView, selection_GMk: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Score bias [G, Q, K + C] of a MASK view: the window's own, then 0 for selected rows and -inf for others."""
    num_groups, width, num_rows = segment.num_groups, segment.width, view.slots_GC.shape[1]
    # Unused selection entries land in one column beyond the rows, which is cut off again.
    columns_GMk = torch.where(selection_GMk < 0, num_rows, selection_GMk)
    bias_GMC = torch.full((num_groups, width, num_rows + 1), HIDDEN, device=selection_GMk.device)
    bias_GMC.scatter_(2, columns_GMk, 0.0)
    bias_GQC = bias_GMC[:, :, None, :num_rows].expand(-1, -1, num_heads, -1).flatten(1, 2)
    return torch.cat([segment.window_bias_GQK.expand(-1, bias_GQC.shape[1], -1), bias_GQC], dim=2)


def attend(
    q_GQD: torch.Tensor, keys_GKD: torch.Tensor, bias_GQK: torch.Tensor, sinks_Q1: torch.Tensor, scale: float
) -> torch.Tensor:
    """Softmax attention with a sink in the denominator only; the keys are the values. Returns [G, Q, D].

    ``sinks_Q1`` float32 has one logit per row of a group's score matrix. Scores and weights are float32. A row
    without a visible key gives zeros. (FlashMLA, ``tests/ref.py``: ``o * 1 / (1 + exp(sink - lse))``.)
    """
    if q_GQD.dtype == torch.float32:
        scores_GQK = torch.baddbmm(bias_GQK, q_GQD, keys_GKD.transpose(1, 2), alpha=scale)
    else:
        scores_GQK = torch.bmm(q_GQD, keys_GKD.transpose(1, 2)).float().mul_(scale).add_(bias_GQK)
    sinks_GQ1 = sinks_Q1.expand(len(q_GQD), -1, -1)
    weights_GQK = torch.cat([scores_GQK, sinks_GQ1], dim=2).softmax(dim=2)[:, :, :-1]
    return torch.bmm(weights_GQK.to(q_GQD.dtype), keys_GKD)


def segment_bias(
    segment: Segment, view: CompressedView | None, selection_GMk: torch.Tensor | None, num_heads: int
) -> torch.Tensor:
    """The score bias of a segment whose queries see the rows of ``view`` (None: only the window)."""
    if view is None:
        return segment.window_bias_GQK
    if view.reach is Reach.MASK:
        return masked_bias(segment, view, selection_GMk, num_heads)
    return view.bias_GQK
