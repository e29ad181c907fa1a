"""Attention of segments: gathers the keys that a plan names and attends them with a sink.

Plain torch on any device; knows neither weights nor how slots came about. Letters: see ``plan_types``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from backends.deepseek_v4.plan_types import CompressedView, ForwardPlan, Reach, Segment
from backends.deepseek_v4.pool import CachePool
from specdec.errors import MetadataError

HIDDEN = float("-inf")


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionInput:
    """One layer's attention over caches that are already written.

    plan        the pass
    layer       layer of the cache pool
    q_THD       rotated queries of all planned tokens
    sinks_H     float32 natural-log weights in the denominator
    scale       factor of the products
    selections  for a CSA layer the selected compressed rows of each segment, int64 [G, M, k], left-packed, then
                -1; None where the segment sees all rows. Empty: every segment sees all rows
    """

    plan: ForwardPlan
    layer: int
    q_THD: torch.Tensor
    sinks_H: torch.Tensor
    scale: float
    selections: tuple[torch.Tensor | None, ...] = ()


def attend_segments(pool: CachePool, step: AttentionInput, segments: Sequence[Segment]) -> torch.Tensor:
    """Attention results [T, H, d] of consecutive segments of ``step.plan``, in token order.

    Raises MetadataError when a segment selects rows and ``selections`` has none for it.
    """
    selections = step.selections or (None,) * len(segments)
    parts = [_attend(pool, step, one, chosen) for one, chosen in zip(segments, selections, strict=True)]
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts) if parts else step.q_THD[:0]


def _attend(
    pool: CachePool, step: AttentionInput, segment: Segment, selection_GMk: torch.Tensor | None
) -> torch.Tensor:
    kind = pool.kind(step.layer)
    view = segment.compressed.get(kind)
    if view is not None and view.reach is not Reach.ALL and selection_GMk is None:
        raise MetadataError(f"{kind.name} attention of layer {step.layer} requires top-k indices")
    num_heads, dim = step.q_THD.shape[1:]
    q_THD = step.q_THD[segment.first : segment.last]
    q_GQD = q_THD.view(segment.num_groups, segment.width * num_heads, dim)
    keys_GKD = pool.swa_rows.take(pool.swa(step.layer), segment.window_slots_GK)
    if view is not None:
        slots = selected_slots(view, selection_GMk) if view.reach is Reach.GATHER else view.slots_GC
        more_GCD = pool.compressed_rows(step.layer).take(pool.compressed(step.layer), slots)
        keys_GKD = torch.cat([keys_GKD, more_GCD], dim=1)
    bias_GQK = segment_bias(segment, view, selection_GMk, num_heads)
    sinks_H = step.sinks_H if segment.width == 1 else step.sinks_H.expand(segment.width, -1).flatten()
    return attend(q_GQD, keys_GKD.to(q_GQD.dtype), bias_GQK, sinks_H, step.scale).view(-1, num_heads, dim)


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
    q_GQD: torch.Tensor, keys_GKD: torch.Tensor, bias_GQK: torch.Tensor, sinks_Q: torch.Tensor, scale: float
) -> torch.Tensor:
    """Softmax attention with a sink in the denominator only; the keys are the values. Returns [G, Q, D].

    ``sinks_Q`` float32 has one logit per row of a group's score matrix. Scores and weights are float32. A row
    without a visible key gives zeros. (FlashMLA, ``tests/ref.py``: ``o * 1 / (1 + exp(sink - lse))``.)
    """
    if q_GQD.dtype == torch.float32:
        scores_GQK = torch.baddbmm(bias_GQK, q_GQD, keys_GKD.transpose(1, 2), alpha=scale)
    else:
        scores_GQK = torch.bmm(q_GQD, keys_GKD.transpose(1, 2)).float().mul_(scale).add_(bias_GQK)
    sinks_GQ1 = sinks_Q.view(1, -1, 1).expand(q_GQD.shape[0], -1, -1)
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
