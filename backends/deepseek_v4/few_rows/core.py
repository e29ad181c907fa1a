"""Attention of few queries over plain float32 caches: what does not depend on the layer is made once a pass.

The sink takes part as one more key, the zero row in slot 0, whose score is its bias. So a layer gathers its keys and
runs two products around a softmax. Same mathematics as ``segments``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from backends.deepseek_v4.cache_groups import AttentionKind
from backends.deepseek_v4.plan_types import CompressedView, ForwardPlan, Reach, Segment
from backends.deepseek_v4.pool import CachePool
from backends.deepseek_v4.rows.plain import PlainRows
from backends.deepseek_v4.segments import selected_slots


@dataclass(frozen=True, kw_only=True, slots=True)
class Sight:
    """What the queries of a segment see of one kind of layer.

    slots_GK    rows of the window, then slot 0 for the sink
    bias_GQK    added to the scores: window, sink, compressed rows
    sinks_GMH   the sink's column of ``bias_GQK``, which every layer overwrites with its own
    view        compressed rows, or None
    """

    slots_GK: torch.Tensor
    bias_GQK: torch.Tensor
    sinks_GMH: torch.Tensor
    view: CompressedView | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlook:
    """What a segment sees, by kind of layer."""

    segment: Segment
    sights: Mapping[AttentionKind, Sight]


def outlooks(plan: ForwardPlan, kinds: Sequence[AttentionKind], num_heads: int) -> tuple[Outlook, ...] | None:
    """The outlooks of a pass; None where a segment selects by a mask."""
    if any(view.reach is Reach.MASK for segment in plan.segments for view in segment.compressed.values()):
        return None
    return tuple(_outlook(segment, kinds, num_heads) for segment in plan.segments)


def _outlook(segment: Segment, kinds: Sequence[AttentionKind], num_heads: int) -> Outlook:
    slots_GK = torch.nn.functional.pad(segment.window_slots_GK, (0, 1))
    sights = {}
    for kind in set(kinds):
        view = segment.compressed.get(kind)
        bias_GQK = segment.window_bias_GQK if view is None else view.bias_GQK
        own_GQK = _with_sink(bias_GQK.numpy(), segment.window_slots_GK.shape[1], segment.width * num_heads)
        sinks_GMH = own_GQK.select(2, slots_GK.shape[1] - 1).view(segment.num_groups, segment.width, num_heads)
        sights[kind] = Sight(slots_GK=slots_GK, bias_GQK=own_GQK, sinks_GMH=sinks_GMH, view=view)
    return Outlook(segment=segment, sights=sights)


def _with_sink(bias_GQK: np.ndarray, num_window: int, num_rows: int) -> torch.Tensor:
    """A copy of a bias with one more column after the window's, for ``num_rows`` rows of scores."""
    num_groups, _, num_columns = bias_GQK.shape
    own_GQK = np.zeros((num_groups, num_rows, num_columns + 1), dtype=np.float32)
    own_GQK[:, :, :num_window] = bias_GQK[:, :, :num_window]
    own_GQK[:, :, num_window + 1 :] = bias_GQK[:, :, num_window:]
    return torch.from_numpy(own_GQK)


class FewRowsCore:
    """Attention over the caches of one pool that ``supports`` accepts; holds flat views of its buffers."""

    def __init__(self, pool: CachePool) -> None:
        dim, layers = pool.layout.head_dim, range(len(pool.kinds))
        self._kinds = pool.kinds
        self._windows = [pool.swa(i).view(-1, dim) for i in layers]
        self._compressed = [pool.compressed(i).view(-1, dim) if pool.kind(i).compresses else None for i in layers]

    @staticmethod
    def supports(pool: CachePool) -> bool:
        """Whether all K/V rows of a pool are plain float32 on the CPU."""
        rows = pool.swa_rows
        return isinstance(rows, PlainRows) and rows.dtype == torch.float32 and pool.device.type == "cpu"

    def __call__(
        self,
        outlook: Sequence[Outlook],
        layer: int,
        q_THD: torch.Tensor,
        sinks_H: torch.Tensor,
        selections: Sequence[torch.Tensor | None],
    ) -> torch.Tensor:
        """Attention results [T, H, d] of scaled queries; arguments: see ``AttentionInput``."""
        num_heads, dim = q_THD.shape[1:]
        parts = []
        for i, each in enumerate(outlook):
            segment, sight = each.segment, each.sights[self._kinds[layer]]
            q_GQD = q_THD[segment.first : segment.last].view(segment.num_groups, -1, dim)
            keys_GKD = torch.embedding(self._windows[layer], sight.slots_GK)
            if sight.view is not None:
                slots_GC = sight.view.slots_GC
                if sight.view.reach is Reach.GATHER:
                    slots_GC = selected_slots(sight.view, selections[i])
                keys_GKD = torch.cat([keys_GKD, torch.embedding(self._compressed[layer], slots_GC)], dim=1)
            sight.sinks_GMH.copy_(sinks_H)
            scores_GQK = torch.baddbmm(sight.bias_GQK, q_GQD, keys_GKD.transpose(1, 2))
            parts.append(torch.bmm(scores_GQK.softmax(2), keys_GKD).view(-1, num_heads, dim))
        return parts[0] if len(parts) == 1 else torch.cat(parts)
