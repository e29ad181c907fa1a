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
from backends.deepseek_v4.fused.stack import PassKit, index_shape
from backends.deepseek_v4.fused.weights import WeightFormats
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
    """An open draft: where its requests' window pages are, and the step's plan over tensors of the step buffers."""

    table: GroupTable
    plan: ForwardPlan

    @property
    def num_reqs(self) -> int:
        return self.plan.num_reqs


class NextNBackend:
    """Runs a ``NextNModel`` as ``specdec.api.GraphDraftBackend``.

    Between the calls of one round it keeps the draft's streams and the step's plan (``StepBuffers``) and the
    window table of the round; nothing survives the next ``begin_draft``. Rounds are recorded as fused operators
    (``PackedDraft``), with tensors of their own. Embedding and head are the target's.

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
        takes_few_rows = config.few_rows > 0 and supports(model)
        self._few_rows = FewRowsNextN(model, pool, embed=embed, head=head) if takes_few_rows else None
        self._step = StepBuffers(
            max_batch=config.max_batch, streams_shape=self._streams_shape, spec=self.spec, like=embed.weight
        )
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
        newest_B = inputs.newest_rows()
        self._is_packed = self._kernels is not None
        if self._is_packed:
            packed = packed_pass(layout, inputs.next_tokens_T, inputs.tables)
            return self.packed.begin(
                packed, hidden_TX=inputs.hidden_TD, next_tokens_T=inputs.next_tokens_T, newest_B=newest_B
            )
        plan = plan_forward(layout, inputs.tables, self.spec, device=self.pool.device)
        streams_TSD = self._catch_up(plan, inputs.hidden_TD, inputs.next_tokens_T)
        self._round = _Round(table=inputs.tables[SWA_GROUP], plan=self._step.plan(layout.num_reqs))
        if not any(inputs.wanted_B):
            return streams_TSD.new_zeros((layout.num_reqs, self._head.out_features), dtype=torch.float32)
        own_BSD = self._own_streams(layout.num_reqs)
        return self._logits(own_BSD.copy_(streams_TSD.index_select(0, newest_B)))

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
        starts_B = torch.arange(num_reqs, device=num_committed_B.device) * width
        return self.packed.begin(
            packed,
            hidden_TX=hidden_TD,
            next_tokens_T=next_tokens_T,
            newest_B=starts_B + num_committed_B.clamp(1, width) - 1,
        )

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
        self._step.write(plan_step(seq_lens_B, draft.table, self.spec))

    @torch.no_grad()
    def forward(self, tokens_B: torch.Tensor) -> torch.Tensor:
        """One draft step with the tokens drafted last, int64 [B]; returns logits float32 [B, V].

        Its position is what ``advance_draft_forward_metadata`` prepared; the draft's own streams are fed back.
        """
        if self._is_packed:
            return self.packed.forward(tokens_B)
        draft = self._opened()
        own_BSD = self._own_streams(draft.num_reqs)
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

    def _own_streams(self, num_reqs: int) -> torch.Tensor:
        return self._step.streams_BSD[:num_reqs]

    def _catch_up(self, plan: ForwardPlan, hidden_TD: torch.Tensor, next_tokens_T: torch.Tensor) -> torch.Tensor:
        """Own streams [T, S, D] of every row of the pass; writes the draft's cache."""
        return self._run(plan, hidden_TD.unflatten(1, self._streams_shape), next_tokens_T)

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
