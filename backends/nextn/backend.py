"""NextNBackend: the NextN draft model over its own cache buffers under the target's page ids.

A round is ``begin_draft`` (catch up over the rows of the target's pass), then per further draft token
``advance_draft_forward_metadata`` and ``forward``. The draft's K/V at position p encodes the streams of p and
the embedding of token p + 1; rows of rejected tokens are rewritten by the next catch-up before they are seen.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from backends.deepseek_v4.cache_groups import SWA_GROUP
from backends.deepseek_v4.few_rows.block import supports
from backends.deepseek_v4.forward_inputs import ForwardInputs
from backends.deepseek_v4.fused.stack import PassKit, index_shape
from backends.deepseek_v4.fused.weights import WeightFormats
from backends.deepseek_v4.graph_state import GraphBuffers, GraphState, GraphStateInputs
from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.paged import PagedPass, pass_ropes
from backends.deepseek_v4.passes import PassConfig, plan_spec, target_layout
from backends.deepseek_v4.plan import plan_forward
from backends.deepseek_v4.plan_types import ForwardPlan
from backends.deepseek_v4.pool import CachePool
from backends.deepseek_v4.target import DeepseekV4Target, packed_pass
from backends.nextn.config import NextNBackendConfig
from backends.nextn.few_rows import FewRowsNextN
from backends.nextn.fused import PackedDraft
from backends.nextn.model import NextNModel
from backends.nextn.plan import StepBuffers, plan_step
from specdec.api import CacheGroupSpec, DraftInput, GroupTable, PackedPass
from specdec.errors import CapacityError, ConfigError, MetadataError


@dataclass(frozen=True, kw_only=True, slots=True)
class _Round:
    """An open draft: how many requests, where their window pages are, and the buffers of its steps.

    valid_B  False for padding requests of a captured round; None when there are none
    plan     the step's plan, whose tensors are those of ``buffers``
    """

    table: GroupTable
    valid_B: torch.Tensor | None
    buffers: StepBuffers
    plan: ForwardPlan

    @property
    def num_reqs(self) -> int:
        return self.plan.num_reqs

    @property
    def streams_BSD(self) -> torch.Tensor:
        return self.buffers.streams_BSD[: self.num_reqs]


class NextNBackend:
    """Runs a ``NextNModel`` as ``specdec.api.GraphDraftBackend``.

    Between the calls of one round it keeps the draft's streams and the step's plan (``StepBuffers``) and the
    window table of the round; nothing survives the next ``begin_draft``. Captured rounds have step buffers of
    their own, so that eager rounds in between never touch what a recorded step reads. Embedding and head are the
    target's.

    Raises ConfigError when the pool does not hold exactly one window-only layer.
    """

    def __init__(
        self,
        model: NextNModel,
        *,
        embed: nn.Embedding,
        head: nn.Linear,
        pool: CachePool,
        max_context: int,
        config: NextNBackendConfig,
        kernels: Kernels | None = None,
        formats: WeightFormats | None = None,
    ) -> None:
        if pool.layout.num_layers != 1 or pool.kind(0).compresses:
            raise ConfigError(f"a NextN pool has one window-only layer, got {[k.name for k in pool.kinds]}")
        self.model = model.eval()
        self.pool = pool
        self.config = config
        self.cache_groups: tuple[CacheGroupSpec, ...] = pool.layout.group_specs()
        self.spec = plan_spec(
            model.config, pool.layout, PassConfig(max_context=max_context, query_block=config.query_block)
        )
        self._embed, self._head = embed, head
        self._streams_shape = (model.config.hc_mult, model.config.hidden_size)
        is_fused = config.few_rows > 0 and supports(model)
        self._few_rows = FewRowsNextN(model, pool, embed=embed, head=head) if is_fused else None
        self._eager = self._step_buffers(config.max_batch)
        self._captured: StepBuffers | None = None
        self._graphs: GraphState | None = None
        self._round: _Round | None = None
        self._kernels = kernels
        self._formats = WeightFormats() if formats is None else formats
        self._packed: PackedDraft | None = None
        self._is_packed = False

    @classmethod
    def build(cls, model: NextNModel, target: DeepseekV4Target, config: NextNBackendConfig) -> "NextNBackend":
        """Make the draft's pool with the target's page counts and cache type, then the backend."""
        layers = model.config.nextn_layer_ids
        layout = target_layout(
            model.config,
            cache_dtype=target.pool.layout.cache_dtype,
            indexer_dtype=target.pool.layout.indexer_dtype,
        ).slice_layers(layers[0], layers[-1] + 1)
        return cls(
            model,
            embed=target.model.embed,
            head=target.model.head,
            pool=CachePool(layout, target.pool.num_pages, device=target.device),
            max_context=target.max_context,
            config=config,
            kernels=target.passes.kernels,
            formats=target.formats,
        )

    @torch.no_grad()
    def begin_draft(self, inputs: DraftInput) -> torch.Tensor:
        """Catch up over every row of the pass, prompt chunks and verified rows alike.

        Returns logits float32 [B, V] of each request's newest committed row (unspecified for all requests when
        none wants a proposal). Raises MetadataError without the target's streams and CapacityError for more
        requests than ``max_batch``.
        """
        layout = inputs.layout
        if inputs.hidden_TD is None:
            raise MetadataError("NextN drafting needs the target's streams (hidden_layers=(LAST_LAYER,)), got none")
        if layout.num_reqs > self.config.max_batch:
            raise CapacityError(
                f"{layout.num_reqs} requests exceed max_batch={self.config.max_batch} (conf: engine.max_batch)"
            )
        if inputs.packed is not None:
            return self.begin_packed_draft(
                inputs.packed,
                hidden_TD=inputs.hidden_TD,
                next_tokens_T=inputs.next_tokens_T,
                num_committed_B=inputs.num_committed_B,
            )
        starts_B1 = torch.tensor(layout.query_starts, dtype=torch.int64).to(self.pool.device)
        newest_B = newest_rows(starts_B1, inputs.num_committed_B)
        self._is_packed = self._kernels is not None
        if self._is_packed:
            packed = packed_pass(layout, inputs.next_tokens_T, inputs.tables)
            return self.packed.begin(
                packed, hidden_TX=inputs.hidden_TD, next_tokens_T=inputs.next_tokens_T, newest_B=newest_B
            )
        plan = plan_forward(layout, inputs.tables, self.spec, device=self.pool.device)
        streams_TSD = self._catch_up(plan, inputs.hidden_TD, inputs.next_tokens_T)
        self._open(inputs.tables[SWA_GROUP], None, self._eager, layout.num_reqs)
        if not any(inputs.wanted_B):
            return streams_TSD.new_zeros((layout.num_reqs, self._head.out_features), dtype=torch.float32)
        return self._first_logits(streams_TSD, newest_B)

    @property
    def packed(self) -> PackedDraft:
        """The draft module as fused operators; made when first used."""
        if self._packed is None:
            kit = PassKit(
                pool=self.pool,
                shape=index_shape(self.spec),
                window=self.model.window_rotary,
                compress=None,
                kernels=self._kernels or Kernels.REFERENCE,
            )
            self._packed = PackedDraft(self.model, kit, embed=self._embed, head=self._head, formats=self._formats)
        return self._packed

    @torch.no_grad()
    def begin_packed_draft(
        self,
        packed: PackedPass,
        *,
        hidden_TD: torch.Tensor,
        next_tokens_T: torch.Tensor,
        num_committed_B: torch.Tensor,
    ) -> torch.Tensor:
        """``begin_draft`` of a packed pass; device work only. See ``api.GraphDraftBackend``."""
        self._is_packed = True
        num_reqs = len(num_committed_B)
        width = len(next_tokens_T) // num_reqs
        starts_B1 = torch.arange(num_reqs + 1, device=num_committed_B.device) * width
        return self.packed.begin(
            packed,
            hidden_TX=hidden_TD,
            next_tokens_T=next_tokens_T,
            newest_B=newest_rows(starts_B1, num_committed_B),
        )

    def init_cuda_graph_state(self, inputs: GraphStateInputs) -> None:
        """Allocate the persistent buffers of captured rounds."""
        self._graphs = GraphState(self.spec, inputs, self.pool.device)
        self._captured = self._step_buffers(inputs.max_batch)

    def init_forward_metadata_capture_cuda_graph(self, inputs: ForwardInputs) -> GraphBuffers:
        """Buffers of a catch-up pass about to be recorded; see ``GraphState.capture``."""
        return self._graph_state().capture(inputs)

    def init_forward_metadata_replay_cuda_graph(self, inputs: ForwardInputs, num_reqs: int) -> GraphBuffers:
        """Buffers of a recorded catch-up pass, refreshed for a round; see ``GraphState.replay``."""
        return self._graph_state().replay(inputs, num_reqs)

    @torch.no_grad()
    def begin_captured_draft(
        self,
        buffers: GraphBuffers,
        *,
        hidden_TD: torch.Tensor,
        next_tokens_T: torch.Tensor,
        num_committed_B: torch.Tensor,
    ) -> torch.Tensor:
        """``begin_draft`` of a packed decode pass over persistent buffers; device work only.

        Arguments have the rows of the padded pass; returns logits float32 [B, V], unspecified for padding.
        """
        assert self._captured is not None, "init_cuda_graph_state comes first"
        streams_TSD = self._catch_up(buffers.plan, hidden_TD, next_tokens_T)
        valid_B = buffers.valid_T[:: buffers.key.tokens_per_request]
        self._open(buffers.tables[SWA_GROUP], valid_B, self._captured, buffers.key.num_reqs)
        return self._first_logits(streams_TSD, newest_rows(buffers.query_starts_B1.long(), num_committed_B))

    @torch.no_grad()
    def advance_draft_forward_metadata(self, seq_lens_B: torch.Tensor) -> None:
        """Prepare a single-token step at position ``seq_lens_B - 1`` in place.

        ``seq_lens_B`` int64 [B] includes the token about to be forwarded. Nothing is read back from the device
        and no buffer moves. Raises MetadataError before ``begin_draft`` or for another number of requests.
        """
        if self._is_packed:
            self.packed.advance(seq_lens_B)
            return
        draft = self._opened()
        if len(seq_lens_B) != draft.num_reqs:
            raise MetadataError(f"the draft was begun with {draft.num_reqs} requests, got {len(seq_lens_B)} lengths")
        draft.buffers.write(plan_step(seq_lens_B, draft.table, self.spec, draft.valid_B))

    @torch.no_grad()
    def forward(self, tokens_B: torch.Tensor) -> torch.Tensor:
        """One draft step with the tokens drafted last, int64 [B]; returns logits float32 [B, V].

        Its position is what ``advance_draft_forward_metadata`` prepared; the draft's own streams are fed back.
        """
        if self._is_packed:
            return self.packed.forward(tokens_B)
        draft = self._opened()
        own_BSD = draft.streams_BSD
        own_BSD.copy_(self._run(draft.plan, own_BSD, tokens_B))
        return self._logits(own_BSD)

    @property
    def step_plan(self) -> ForwardPlan:
        """The plan of the current step (its tensors are overwritten in place by the next one)."""
        return self._opened().plan

    def _opened(self) -> _Round:
        if self._round is None:
            raise MetadataError("draft metadata was not initialized: begin_draft opens a draft")
        return self._round

    def _open(self, table: GroupTable, valid_B: torch.Tensor | None, buffers: StepBuffers, num_reqs: int) -> None:
        self._round = _Round(table=table, valid_B=valid_B, buffers=buffers, plan=buffers.plan(num_reqs))

    def _step_buffers(self, max_batch: int) -> StepBuffers:
        return StepBuffers(
            max_batch=max_batch, streams_shape=self._streams_shape, spec=self.spec, like=self._embed.weight
        )

    def _graph_state(self) -> GraphState:
        if self._graphs is None:
            raise MetadataError("init_cuda_graph_state must be called before a pass is captured")
        return self._graphs

    def _catch_up(self, plan: ForwardPlan, hidden_TD: torch.Tensor, next_tokens_T: torch.Tensor) -> torch.Tensor:
        """Own streams [T, S, D] of every row of the pass; writes the draft's cache."""
        return self._run(plan, hidden_TD.unflatten(1, self._streams_shape), next_tokens_T)

    def _first_logits(self, streams_TSD: torch.Tensor, newest_B: torch.Tensor) -> torch.Tensor:
        """Logits [B, V] of the newest rows, whose streams become the draft's own."""
        return self._logits(self._opened().streams_BSD.copy_(streams_TSD.index_select(0, newest_B)))

    def _logits(self, own_BSD: torch.Tensor) -> torch.Tensor:
        if self._few_rows is None or len(own_BSD) > self.config.few_rows:
            return self.model.logits(own_BSD, self._head)
        return self._few_rows.logits(own_BSD)

    def _run(self, plan: ForwardPlan, streams_TSD: torch.Tensor, tokens_T: torch.Tensor) -> torch.Tensor:
        """Own streams [T, S, D] of previous streams and the tokens that follow them."""
        with torch.inference_mode():
            ropes = pass_ropes(plan, self.model.window_rotary, None)
            paged = PagedPass.of(plan, self.pool, ropes, self.spec)
            if self._few_rows is not None and plan.num_tokens <= self.config.few_rows:
                return self._few_rows(paged, streams_TSD, tokens_T)
            attend = partial(paged.attention, 0)
            return self.model(streams_TSD, self._embed(tokens_T), plan.positions_T, tokens_T, attend)


def newest_rows(query_starts_B1: torch.Tensor, num_committed_B: torch.Tensor) -> torch.Tensor:
    """Packed row [B] int64 of each request's newest committed token; never leaves the request's own rows.

    ``query_starts_B1`` int64 [B + 1] is the prefix sum of the query lengths. A count of 0 (nothing committed at
    the context limit) takes a request's first row, one beyond its rows the last.
    """
    starts_B, lens_B = query_starts_B1[:-1], query_starts_B1.diff()
    return starts_B + num_committed_B.clamp(min=1).minimum(lens_B) - 1
