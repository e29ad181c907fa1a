"""NextNBackend: the NextN draft model over its own cache buffers under the target's page ids.

A round is ``begin_draft`` (catch up over the rows of the target's pass), then per further draft token
``advance_draft_forward_metadata`` and ``forward``. The draft's K/V at position p encodes the streams of p and
the embedding of token p + 1; rows of rejected tokens are rewritten by the next catch-up before they are seen.
"""

from functools import partial

import torch
from torch import nn

from backends.deepseek_v4.cache_groups import SWA_GROUP
from backends.deepseek_v4.moe import ExpertPath
from backends.deepseek_v4.paged import PagedPass, pass_ropes
from backends.deepseek_v4.plan import plan_forward
from backends.deepseek_v4.plan_types import ForwardPlan
from backends.deepseek_v4.pool import CachePool
from backends.deepseek_v4.target import DeepseekV4Target, PassConfig, plan_spec, target_layout
from backends.nextn.config import NextNBackendConfig
from backends.nextn.model import NextNModel
from backends.nextn.plan import StepBuffers, plan_step
from specdec.api import CacheGroupSpec, DraftInput, GroupTable
from specdec.errors import CapacityError, ConfigError, MetadataError


class NextNBackend:
    """Runs a ``NextNModel`` as ``specdec.api.DraftBackend``.

    Between calls of one round it keeps the draft's streams and the step's plan (``StepBuffers``) and the window
    table of the round; nothing survives the next ``begin_draft``. Embedding and head are the target's own.

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
        self._buffers = StepBuffers(
            max_batch=config.max_batch, streams_shape=self._streams_shape, spec=self.spec, like=embed.weight
        )
        self._plans = {b: self._buffers.plan(b) for b in range(1, config.max_batch + 1)}
        self._table: GroupTable | None = None
        self._num_reqs = 0

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
        plan = plan_forward(layout, inputs.tables, self.spec, device=self.pool.device)
        streams_TSD = inputs.hidden_TD.unflatten(1, self._streams_shape)
        streams_TSD = self._run(plan, streams_TSD, inputs.next_tokens_T)
        self._table, self._num_reqs = inputs.tables[SWA_GROUP], layout.num_reqs
        if not any(inputs.wanted_B):
            return streams_TSD.new_zeros((layout.num_reqs, self._head.out_features), dtype=torch.float32)
        newest_B = newest_rows(layout.query_starts, inputs.num_committed_B)
        own_BSD = self._own_streams().copy_(streams_TSD.index_select(0, newest_B))
        return self.model.logits(own_BSD, self._head)

    @torch.no_grad()
    def advance_draft_forward_metadata(self, seq_lens_B: torch.Tensor) -> None:
        """Prepare a single-token step at position ``seq_lens_B - 1`` in place.

        ``seq_lens_B`` int64 [B] includes the token about to be forwarded. Nothing is read back from the device
        and no buffer moves. Raises MetadataError before ``begin_draft`` or for another number of requests.
        """
        if self._table is None:
            raise MetadataError("draft metadata was not initialized: begin_draft opens a draft")
        if len(seq_lens_B) != self._num_reqs:
            raise MetadataError(f"the draft was begun with {self._num_reqs} requests, got {len(seq_lens_B)} lengths")
        self._buffers.write(plan_step(seq_lens_B, self._table, self.spec))

    @torch.no_grad()
    def forward(self, tokens_B: torch.Tensor) -> torch.Tensor:
        """One draft step with the token at position ``seq_lens_B``; returns logits float32 [B, V].

        ``tokens_B`` int64 [B] are the tokens drafted last. The step's position is what
        ``advance_draft_forward_metadata`` prepared; the draft's own streams are fed back.
        """
        plan = self._plans[self._num_reqs]
        own_BSD = self._own_streams()
        own_BSD.copy_(self._run(plan, own_BSD, tokens_B))
        return self.model.logits(own_BSD, self._head)

    @property
    def step_plan(self) -> ForwardPlan:
        """The plan of the current step (its tensors are overwritten in place by the next one)."""
        if self._table is None:
            raise MetadataError("draft metadata was not initialized: begin_draft opens a draft")
        return self._plans[self._num_reqs]

    def _own_streams(self) -> torch.Tensor:
        return self._buffers.streams_BSD[: self._num_reqs]

    def _run(self, plan: ForwardPlan, streams_TSD: torch.Tensor, tokens_T: torch.Tensor) -> torch.Tensor:
        """Own streams [T, S, D] of previous streams and the tokens that follow them."""
        ropes = pass_ropes(plan, self.model.window_rotary, None)
        paged = PagedPass(plan=plan, pool=self.pool, ropes=ropes)
        embeddings_TD = self._embed(tokens_T)
        attend = partial(paged.attention, 0)
        path: ExpertPath | None = None
        return self.model(streams_TSD, embeddings_TD, plan.positions_T, tokens_T, attend, path)


def newest_rows(query_starts: tuple[int, ...], num_committed_B: torch.Tensor) -> torch.Tensor:
    """Packed row [B] int64 of each request's newest committed token; never leaves the request's own rows.

    A count of 0 (nothing committed at the context limit) takes the first row, one beyond the rows the last.
    """
    starts = torch.tensor(query_starts, dtype=torch.int64, device=num_committed_B.device)
    starts_B, lens_B = starts[:-1], starts.diff()
    return starts_B + num_committed_B.clamp(min=1).minimum(lens_B) - 1
