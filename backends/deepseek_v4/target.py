"""DeepseekV4Target: a DeepSeek-V4 model over paged caches, as ``specdec.api.Target``.

Owns the weights and the cache pool; everything about a pass comes in as arguments and leaves as a value.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch

from backends.deepseek_v4.backend import DeepseekV4AttentionBackend
from backends.deepseek_v4.few_rows.block import FewRowsBlocks, supports
from backends.deepseek_v4.few_rows.head import FewRowsHead
from backends.deepseek_v4.model import DeepseekV4Model
from backends.deepseek_v4.moe import ExpertPath
from backends.deepseek_v4.paged import PagedPass, pass_ropes
from backends.deepseek_v4.passes import PassConfig, plan_spec, target_layout
from backends.deepseek_v4.plan_types import ForwardPlan
from backends.deepseek_v4.pool import CachePool
from specdec.api import LAST_LAYER, CacheGroupSpec, Tables, TargetOutput
from specdec.errors import ConfigError
from specdec.layout import RoundLayout


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
        self.backend = DeepseekV4AttentionBackend(plan_spec(model.config, pool.layout, passes), pool, passes)
        self._few_rows, self._head = None, None
        if passes.few_rows and supports(model):
            self._few_rows = FewRowsBlocks(model.layers, model.config, pool, constant_shapes=passes.batch_invariant)
            self._head = FewRowsHead(
                model.hc_head, model.norm.weight, model.head.weight, model.config, half=not passes.batch_invariant
            )
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
        if layout.num_tokens == 0:
            return self._nothing(hidden_layers)
        plan = self.backend.plan(layout, tables)
        return self.run(plan, tokens_T, logit_rows=layout.logit_rows, hidden_layers=hidden_layers)

    def _nothing(self, hidden_layers: tuple[int, ...]) -> TargetOutput:
        """The result of an idle pass."""
        config, weight = self.model.config, self.model.embed.weight
        width = len(hidden_layers) * config.hc_mult * config.hidden_size
        return TargetOutput(
            logits_RV=torch.zeros(0, config.vocab_size, device=weight.device),
            hidden_TD=weight.new_zeros((0, width)) if hidden_layers else None,
        )

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
        # Views are cheaper without autograd's bookkeeping; what leaves is copied into ordinary tensors.
        with torch.inference_mode():
            if num_tokens < plan.num_tokens:
                tokens_T = torch.nn.functional.pad(tokens_T, (0, plan.num_tokens - num_tokens))
            streams_TSD, kept = self._layers(plan, tokens_T, hidden_layers)
            logits_RV = self._logits(streams_TSD, logit_rows)
        hidden_TD = torch.cat([state[:num_tokens] for state in kept], dim=1) if kept else None
        return TargetOutput(logits_RV=logits_RV.clone(), hidden_TD=hidden_TD)

    def _layers(
        self, plan: ForwardPlan, tokens_T: torch.Tensor, hidden_layers: tuple[int, ...]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Final streams [T, S, D] and the flattened streams [T, S * D] after each of ``hidden_layers``."""
        model = self.model
        ropes = pass_ropes(plan, model.window_rotary, model.compress_rotary)
        paged = PagedPass.of(plan, self.pool, ropes, self.backend.spec)
        run_layer = self._layer_runner(paged, tokens_T)
        last = len(model.layers) - 1
        wanted = [last if layer == LAST_LAYER else layer for layer in hidden_layers]
        states = {}
        streams_TSD = model.embed_streams(tokens_T)
        for i in range(len(model.layers)):
            streams_TSD = run_layer(i, streams_TSD)
            if i in wanted:
                states[i] = streams_TSD.flatten(1)
        return streams_TSD, [states[layer] for layer in wanted]

    def _layer_runner(self, paged: PagedPass, tokens_T: torch.Tensor) -> Callable[[int, torch.Tensor], torch.Tensor]:
        """What runs one layer of this pass: (layer, streams) -> streams."""
        if self._few_rows is not None and paged.plan.num_tokens <= self.passes.few_rows:
            return self._few_rows.runner(paged, tokens_T)
        path = ExpertPath.ALL if self.passes.batch_invariant else None
        layers = self.model.layers
        return lambda i, streams_TSD: layers[i](streams_TSD, tokens_T, partial(paged.attention, i), path)

    def _logits(self, streams_TSD: torch.Tensor, rows: tuple[int, ...]) -> torch.Tensor:
        """Logits float32 [R, V] of the packed tokens ``rows``."""
        num_tokens = len(streams_TSD)
        is_part = len(rows) < num_tokens
        index_R = torch.tensor(rows, dtype=torch.int64, device=streams_TSD.device) if is_part else None
        if is_part and not self.passes.batch_invariant:
            streams_TSD, is_part = streams_TSD.index_select(0, index_R), False
        if self._few_rows is not None and len(streams_TSD) <= self.passes.few_rows:
            logits_TV = self._head(streams_TSD)
        else:
            logits_TV = self.model.logits(streams_TSD)
        return logits_TV.index_select(0, index_R) if is_part else logits_TV
