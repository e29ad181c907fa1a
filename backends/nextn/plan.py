"""The single-token step of a draft: its plan and the buffers that hold it; knows no weights.

``plan_step`` is pure device work on lengths that may never have been on the host. ``StepBuffers`` are made once
and only copied into. Letters: see ``backends.deepseek_v4.plan_types``.
"""

import torch

from backends.deepseek_v4.cache_groups import SWA_GROUP
from backends.deepseek_v4.ops.range_slots import range_slots
from backends.deepseek_v4.plan import window_segment
from backends.deepseek_v4.plan_types import ForwardPlan, PlanSpec, Segment
from specdec.api import GroupTable
from specdec.layout import ForwardMode


def plan_step(seq_lens_B: torch.Tensor, table: GroupTable, spec: PlanSpec) -> ForwardPlan:
    """Plan of one token per request at position ``seq_lens_B - 1`` (lengths int64, including that token).

    Requests without pages see nothing and write nothing.
    """
    starts_B = seq_lens_B - 1
    window = range(1 - spec.window_tokens, 1)
    slots_BW = range_slots(table, None, starts_B, window, spec.rows_per_page(SWA_GROUP))
    num_reqs = len(seq_lens_B)
    return ForwardPlan(
        mode=ForwardMode.DECODE,
        num_reqs=num_reqs,
        num_tokens=num_reqs,
        num_prefill_reqs=0,
        num_prefill_tokens=0,
        positions_T=starts_B.clamp(min=0),
        valid_T=None,
        write_slots={SWA_GROUP: slots_BW[:, -1]},
        boundaries={},
        segments=(window_segment(slots_BW, first=0, width=1, is_prefill=False, spec=spec),),
    )


class StepBuffers:
    """The persistent tensors of a draft step for up to ``max_batch`` requests.

    Holds tensors between calls because making them costs a small step much of its time: the plan's, and the draft's
    own streams [max_batch, S, D], which one step writes and the next one reads.
    """

    def __init__(self, *, max_batch: int, streams_shape: tuple[int, int], spec: PlanSpec, like: torch.Tensor) -> None:
        device = like.device
        self.streams_BSD = torch.zeros(max_batch, *streams_shape, dtype=like.dtype, device=device)
        self._positions_B = torch.zeros(max_batch, dtype=torch.int64, device=device)
        self._write_slots_B = torch.zeros(max_batch, dtype=torch.int64, device=device)
        self._slots_BW = torch.zeros(max_batch, spec.window_tokens, dtype=torch.int64, device=device)
        self._bias_B1W = torch.zeros(max_batch, 1, spec.window_tokens, device=device)

    def plan(self, num_reqs: int) -> ForwardPlan:
        """The plan whose tensors are the first ``num_reqs`` rows of the buffers."""
        segment = Segment(
            first=0,
            last=num_reqs,
            num_groups=num_reqs,
            width=1,
            is_prefill=False,
            window_slots_GK=self._slots_BW[:num_reqs],
            window_bias_GQK=self._bias_B1W[:num_reqs],
            compressed={},
        )
        return ForwardPlan(
            mode=ForwardMode.DECODE,
            num_reqs=num_reqs,
            num_tokens=num_reqs,
            num_prefill_reqs=0,
            num_prefill_tokens=0,
            positions_T=self._positions_B[:num_reqs],
            valid_T=None,
            write_slots={SWA_GROUP: self._write_slots_B[:num_reqs]},
            boundaries={},
            segments=(segment,),
        )

    def write(self, plan: ForwardPlan) -> None:
        """Copy a plan of at most ``max_batch`` requests into the buffers."""
        num_reqs = plan.num_reqs
        (segment,) = plan.segments
        self._positions_B[:num_reqs].copy_(plan.positions_T)
        self._write_slots_B[:num_reqs].copy_(plan.write_slots[SWA_GROUP])
        self._slots_BW[:num_reqs].copy_(segment.window_slots_GK)
        self._bias_B1W[:num_reqs].copy_(segment.window_bias_GQK)
