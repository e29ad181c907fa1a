"""DeepseekV4Target: a DeepSeek-V4 model over paged caches, as ``specdec.api.Target``.

Owns the weights and the cache pool; everything about a pass comes in as arguments and leaves as a value.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch

from backends.deepseek_v4.cache_groups import CacheLayout
from backends.deepseek_v4.config import DeepseekV4Config
from backends.deepseek_v4.model import DeepseekV4Model
from backends.deepseek_v4.moe import ExpertPath
from backends.deepseek_v4.paged import PagedPass, pass_ropes
from backends.deepseek_v4.plan import plan_forward
from backends.deepseek_v4.plan_types import EAGER, ForwardPlan, PlanShape, PlanSpec
from backends.deepseek_v4.pool import CachePool
from specdec.api import LAST_LAYER, CacheGroupSpec, Tables, TargetOutput
from specdec.checks import flag, positive_int
from specdec.errors import CapacityError, ConfigError
from specdec.layout import RoundLayout


@dataclass(frozen=True, kw_only=True, slots=True)
class PassConfig:
    """How passes are shaped.

    max_context      positions of the longest request, in tokens
    batch_invariant  every product on exactly ``fixed_rows`` rows and attention over constant widths, so that the
                     result of a row does not depend, bit for bit, on what else is in the pass
    fixed_rows       rows of every pass under ``batch_invariant``; longer passes are refused
    query_block      most queries of a prompt chunk that are attended at once
    """

    max_context: int
    batch_invariant: bool = False
    fixed_rows: int = 8
    query_block: int = 128

    def __post_init__(self) -> None:
        positive_int("max_context", self.max_context, where="engine.max_context")
        flag("batch_invariant", self.batch_invariant, where="engine.batch_invariant")
        positive_int("fixed_rows", self.fixed_rows, where="engine.fixed_rows")
        positive_int("query_block", self.query_block)

    def shape(self, num_tokens: int) -> PlanShape:
        """Plan shape of a pass. Raises CapacityError when it has more tokens than ``fixed_rows`` allow."""
        if not self.batch_invariant:
            return EAGER
        if num_tokens > self.fixed_rows:
            raise CapacityError(
                f"engine.batch_invariant computes every pass on engine.fixed_rows={self.fixed_rows} rows, "
                f"got {num_tokens} tokens"
            )
        return PlanShape(num_tokens=self.fixed_rows, per_token=True, constant_widths=True)


def plan_spec(config: DeepseekV4Config, layout: CacheLayout, passes: PassConfig) -> PlanSpec:
    """What planning must know of the layers of ``layout``."""
    return PlanSpec(
        groups={spec.group_id: spec for spec in layout.group_specs()},
        kinds=layout.compressing_kinds,
        window_tokens=layout.sliding_window,
        num_heads=config.num_attention_heads,
        index_topk=config.index_topk,
        max_context=passes.max_context,
        query_block=passes.query_block,
    )


def target_layout(config: DeepseekV4Config, *, cache_dtype: str, indexer_dtype: str) -> CacheLayout:
    """Cache layout of all layers of a checkpoint: the target's, then the NextN layer's."""
    return CacheLayout(
        compress_ratios=config.compress_ratios,
        sliding_window=config.sliding_window,
        head_dim=config.head_dim,
        rope_dim=config.qk_rope_head_dim,
        index_head_dim=config.index_head_dim,
        cache_dtype=cache_dtype,
        indexer_dtype=indexer_dtype,
    )


class DeepseekV4Target:
    """The target of a run. Raises ConfigError when pool and model do not fit."""

    def __init__(self, model: DeepseekV4Model, pool: CachePool, passes: PassConfig) -> None:
        if pool.layout.num_layers != model.config.num_hidden_layers:
            raise ConfigError(
                f"the cache pool has {pool.layout.num_layers} layers, the model {model.config.num_hidden_layers}"
            )
        self.model = model.eval()
        self.pool = pool
        self.passes = passes
        self.spec = plan_spec(model.config, pool.layout, passes)
        self.vocab_size = model.config.vocab_size
        self.max_context = passes.max_context
        self.device = pool.device
        self.cache_groups: tuple[CacheGroupSpec, ...] = pool.layout.group_specs()

    @classmethod
    def build(
        cls,
        model: DeepseekV4Model,
        num_pages: Mapping[str, int],
        passes: PassConfig,
        *,
        cache_dtype: str,
        indexer_dtype: str,
        poison: bool = False,
    ) -> "DeepseekV4Target":
        """Make the pool of a model on the model's device, then the target.

        ``num_pages`` has the pages of every cache group; ``poison`` fills unwritten state with NaN.
        """
        config = model.config
        layout = target_layout(config, cache_dtype=cache_dtype, indexer_dtype=indexer_dtype)
        layers = layout.slice_layers(0, config.num_hidden_layers)
        pool = CachePool(layers, num_pages, device=model.embed.weight.device, poison=poison)
        return cls(model, pool, passes)

    def plan(self, layout: RoundLayout, tables: Tables) -> ForwardPlan:
        """The index tensors of a pass."""
        shape = self.passes.shape(layout.num_tokens)
        return plan_forward(layout, tables, self.spec, device=self.device, shape=shape)

    def forward(
        self,
        layout: RoundLayout,
        tokens_T: torch.Tensor,
        tables: Tables,
        *,
        hidden_layers: tuple[int, ...] = (),
    ) -> TargetOutput:
        """Run one pass and write the caches in place; see ``specdec.api.Target``.

        ``tokens_T`` int64 [T]. Raises MetadataError for tables that do not fit the layout and CapacityError for
        a pass that is longer than ``PassConfig.fixed_rows`` allow.
        """
        plan = self.plan(layout, tables)
        return self.run(plan, tokens_T, logit_rows=layout.logit_rows, hidden_layers=hidden_layers)

    @torch.no_grad()
    def run(
        self,
        plan: ForwardPlan,
        tokens_T: torch.Tensor,
        *,
        logit_rows: tuple[int, ...],
        hidden_layers: tuple[int, ...] = (),
    ) -> TargetOutput:
        """Run a planned pass. ``tokens_T`` int64 has the tokens of the layout, or of every planned row.

        ``logit_rows`` are the packed tokens whose logits are returned, ascending.
        """
        num_tokens = len(tokens_T)
        if num_tokens < plan.num_tokens:
            tokens_T = torch.nn.functional.pad(tokens_T, (0, plan.num_tokens - num_tokens))
        streams_TSD, kept = self._layers(plan, tokens_T, hidden_layers)
        hidden_TD = torch.cat([state[:num_tokens] for state in kept], dim=1) if kept else None
        return TargetOutput(logits_RV=self._logits(streams_TSD, logit_rows), hidden_TD=hidden_TD)

    def _layers(
        self, plan: ForwardPlan, tokens_T: torch.Tensor, hidden_layers: tuple[int, ...]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Final streams [T, S, D] and the flattened streams [T, S * D] after each of ``hidden_layers``."""
        model = self.model
        ropes = pass_ropes(plan, model.window_rotary, model.compress_rotary)
        paged = PagedPass(plan=plan, pool=self.pool, ropes=ropes)
        path = ExpertPath.ALL if self.passes.batch_invariant else None
        last = len(model.layers) - 1
        wanted = [last if layer == LAST_LAYER else layer for layer in hidden_layers]
        states = {}
        streams_TSD = model.embed_streams(tokens_T)
        for i, block in enumerate(model.layers):
            streams_TSD = block(streams_TSD, tokens_T, partial(paged.attention, i), path)
            if i in wanted:
                states[i] = streams_TSD.flatten(1)
        return streams_TSD, [states[layer] for layer in wanted]

    def _logits(self, streams_TSD: torch.Tensor, rows: tuple[int, ...]) -> torch.Tensor:
        """Logits float32 [R, V] of the packed tokens ``rows``."""
        if len(rows) == len(streams_TSD):
            return self.model.logits(streams_TSD)
        index_R = torch.tensor(rows, dtype=torch.int64, device=streams_TSD.device)
        if self.passes.batch_invariant:
            return self.model.logits(streams_TSD).index_select(0, index_R)
        return self.model.logits(streams_TSD.index_select(0, index_R))
