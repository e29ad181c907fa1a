"""DeepseekV4AttentionBackend: the paged V4 attention behind the method names that serving engines use.

A thin facade: ``init_forward_metadata`` returns a value and the caller passes it on; there is no current
metadata, nothing is chosen by counting tokens, and no call depends on an earlier one. The buffers of captured passes
are for engines that record such a pass themselves; the rounds of ``specdec.rounds`` record ``target.forward_packed``.
"""

from dataclasses import dataclass

import torch

from backends.deepseek_v4.cache_groups import (
    INDEX_STATE_GROUP,
    SWA_GROUP,
    AttentionKind,
    compressed_group,
    state_group,
)
from backends.deepseek_v4.forward_inputs import ForwardInputs, layout_of
from backends.deepseek_v4.graph_state import GraphBuffers, GraphState, GraphStateInputs
from backends.deepseek_v4.passes import PassConfig
from backends.deepseek_v4.plan import plan_forward, slice_table
from backends.deepseek_v4.plan_types import ForwardPlan, PlanSpec, Segment
from backends.deepseek_v4.pool import CachePool
from backends.deepseek_v4.segments import AttentionInput, attend_segments
from specdec.api import GroupTable, Tables
from specdec.errors import MetadataError
from specdec.layout import ForwardMode, RoundLayout


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardMetadata:
    """One pass: what it holds (host), where its pages are, and its index tensors."""

    layout: RoundLayout
    tables: Tables
    plan: ForwardPlan

    def _table(self, group_id: str) -> GroupTable:
        if group_id not in self.tables:
            raise MetadataError(f"missing paged-cache block table of group {group_id}, got {sorted(self.tables)}")
        return self.tables[group_id]

    @property
    def swa_table(self) -> GroupTable:
        return self._table(SWA_GROUP)

    @property
    def index_state_table(self) -> GroupTable:
        return self._table(INDEX_STATE_GROUP)

    def state_table(self, kind: AttentionKind) -> GroupTable:
        """Table of a kind's compressor state. Raises MetadataError when the pass has none."""
        return self._table(state_group(kind))

    def compressed_table(self, kind: AttentionKind) -> GroupTable:
        """Table of a kind's compressed rows. Raises MetadataError when the pass has none."""
        return self._table(compressed_group(kind))


class DeepseekV4AttentionBackend:
    """Plans passes and attends over one cache pool; the only state it keeps are the buffers of captured passes."""

    def __init__(self, spec: PlanSpec, pool: CachePool, passes: PassConfig) -> None:
        self.spec = spec
        self.pool = pool
        self.passes = passes
        self._graphs: GraphState | None = None

    def plan(self, layout: RoundLayout, tables: Tables) -> ForwardPlan:
        """The index tensors of a pass. Raises MetadataError or CapacityError when it does not fit."""
        shape = self.passes.shape(layout.num_tokens)
        return plan_forward(layout, tables, self.spec, device=self.pool.device, shape=shape)

    def init_forward_metadata(self, inputs: ForwardInputs) -> ForwardMetadata:
        """Metadata of an eager pass."""
        layout = layout_of(inputs)
        return ForwardMetadata(layout=layout, tables=inputs.tables, plan=self.plan(layout, inputs.tables))

    def slice_metadata(self, metadata: ForwardMetadata, reqs: range) -> ForwardMetadata:
        """Metadata of consecutive requests of a pass, planned afresh, token and request numbers from 0."""
        layout = slice_layout(metadata.layout, reqs)
        tables = {group_id: slice_table(table, reqs) for group_id, table in metadata.tables.items()}
        return ForwardMetadata(layout=layout, tables=tables, plan=self.plan(layout, tables))

    def init_cuda_graph_state(self, inputs: GraphStateInputs) -> None:
        """Allocate the persistent buffers of captured passes."""
        self._graphs = GraphState(self.spec, inputs, self.pool.device)

    def init_forward_metadata_capture_cuda_graph(self, inputs: ForwardInputs) -> GraphBuffers:
        """Buffers of a pass about to be recorded; see ``GraphState.capture``."""
        return self._graph_state().capture(inputs)

    def init_forward_metadata_replay_cuda_graph(self, inputs: ForwardInputs, num_reqs: int) -> GraphBuffers:
        """Buffers of a recorded pass, refreshed for a round; see ``GraphState.replay``."""
        return self._graph_state().replay(inputs, num_reqs)

    def forward_decode(self, step: AttentionInput) -> torch.Tensor:
        """Attention [T, H, d] of a decode pass (one token per request, or packed).

        Raises MetadataError for another mode, another number of queries, or a CSA layer without selection.
        """
        if step.plan.mode is not ForwardMode.DECODE:
            raise MetadataError(f"forward_decode takes a decode pass only, got {step.plan.mode.value}")
        return self._attend(step)

    def forward_prefill(self, step: AttentionInput) -> torch.Tensor:
        """Attention [T, H, d] of a pass of prompt chunks. Raises like ``forward_decode``."""
        if step.plan.mode is not ForwardMode.EXTEND:
            raise MetadataError(
                f"forward_prefill requires prepared chunk metadata of a prompt pass, got {step.plan.mode.value}"
            )
        return self._attend(step)

    def forward_mixed(self, step: AttentionInput) -> torch.Tensor:
        """Attention [T, H, d] of prompt chunks followed by decode rows. Raises like ``forward_decode``."""
        if step.plan.mode is not ForwardMode.MIXED:
            raise MetadataError(f"forward_mixed takes a mixed pass only, got {step.plan.mode.value}")
        return self._attend(step)

    def _attend(self, step: AttentionInput) -> torch.Tensor:
        if step.q_THD.shape[0] != step.plan.num_tokens:
            raise MetadataError(
                f"token count mismatch: {step.q_THD.shape[0]} queries for a pass of {step.plan.num_tokens} tokens"
            )
        return attend_segments(self.pool, step, step.plan.segments)

    def _graph_state(self) -> GraphState:
        if self._graphs is None:
            raise MetadataError("init_cuda_graph_state must be called before a pass is captured")
        return self._graphs


def slice_layout(layout: RoundLayout, reqs: range) -> RoundLayout:
    """The layout of consecutive requests; logit rows that lie in them are kept."""
    first, last = layout.query_starts[reqs.start], layout.query_starts[reqs.stop]
    return RoundLayout(
        rows=layout.rows[reqs.start : reqs.stop],
        start_positions=layout.start_positions[reqs.start : reqs.stop],
        query_lens=layout.query_lens[reqs.start : reqs.stop],
        num_prefill_reqs=max(0, min(layout.num_prefill_reqs, reqs.stop) - reqs.start),
        logit_rows=tuple(row - first for row in layout.logit_rows if first <= row < last),
    )


def split_selection(plan: ForwardPlan, topk_Tk: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Selected rows of all tokens, int64 [T, k], cut into the segments of a plan."""
    return tuple(_of_segment(segment, topk_Tk) for segment in plan.segments)


def _of_segment(segment: Segment, topk_Tk: torch.Tensor) -> torch.Tensor:
    return topk_Tk[segment.first : segment.last].unflatten(0, (segment.num_groups, segment.width))
