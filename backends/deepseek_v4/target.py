"""DeepseekV4Target: a DeepSeek-V4 model over paged caches, as ``specdec.api.Target``.

Owns the weights and the cache pool; everything about a pass comes in as arguments and leaves as a value.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch

from backends.deepseek_v4.backend import DeepseekV4AttentionBackend
from backends.deepseek_v4.few_rows.block import FewRowsBlocks, supports
from backends.deepseek_v4.few_rows.head import FewRowsHead
from backends.deepseek_v4.fused.stack import FusedStack, PassKit, index_shape
from backends.deepseek_v4.fused.weights import WeightFormats
from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.model import DeepseekV4Model
from backends.deepseek_v4.moe import ExpertPath
from backends.deepseek_v4.paged import PagedPass, pass_ropes
from backends.deepseek_v4.passes import PassConfig, plan_spec, target_layout
from backends.deepseek_v4.plan import check_tables
from backends.deepseek_v4.plan_types import ForwardPlan
from backends.deepseek_v4.pool import CachePool
from specdec.api import LAST_LAYER, CacheGroupSpec, PackedPass, Tables, TargetOutput
from specdec.errors import ConfigError, UnsupportedError
from specdec.layout import RoundLayout


class DeepseekV4Target:
    """The target of a run. Raises ConfigError when pool and model do not fit."""

    def __init__(
        self, model: DeepseekV4Model, pool: CachePool, passes: PassConfig, formats: WeightFormats | None = None
    ) -> None:
        if pool.layout.num_layers != model.config.num_hidden_layers:
            raise ConfigError(
                f"the cache pool has {pool.layout.num_layers} layers, the model {model.config.num_hidden_layers}"
            )
        self.model = model.eval()
        self.pool = pool
        self.passes = passes
        self.backend = DeepseekV4AttentionBackend(plan_spec(model.config, pool.layout, passes), pool, passes)
        self.formats = WeightFormats() if formats is None else formats
        self._fused: FusedStack | None = None
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
        formats: WeightFormats | None = None,
        poison: bool = False,
    ) -> "DeepseekV4Target":
        """Make the pool of a model on the model's device, then the target.

        ``num_pages`` has the pages of every cache group; ``poison`` fills unwritten state with NaN.
        """
        config = model.config
        layout = target_layout(config, cache_dtype=cache_dtype, indexer_dtype=indexer_dtype)
        layers = layout.slice_layers(0, config.num_hidden_layers)
        pool = CachePool(layers, num_pages, device=model.embed.weight.device, poison=poison)
        return cls(model, pool, passes, formats)

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
        a pass that is longer than ``PassConfig.fixed_rows`` allow; UnsupportedError for a tree.
        """
        if layout.has_trees:
            raise UnsupportedError(
                "DeepSeek-V4 targets verify chains, not trees: the state of their compressors is addressed by position "
                "and cannot hold siblings (conf: drafter)"
            )
        if layout.num_tokens == 0:
            return self._nothing(hidden_layers)
        if self.passes.kernels is not None:
            return self._forward_fused(layout, tokens_T, tables, hidden_layers)
        plan = self.backend.plan(layout, tables)
        return self.run(plan, tokens_T, logit_rows=layout.logit_rows, hidden_layers=hidden_layers)

    @property
    def fused(self) -> FusedStack:
        """The layers as fused operators; made when first used, since a run on the reference path needs no copy."""
        if self._fused is None:
            model = self.model
            compress = model.compress_rotary if self.backend.spec.kinds else None
            kit = PassKit(
                pool=self.pool,
                shape=index_shape(self.backend.spec),
                window=model.window_rotary,
                compress=compress,
                kernels=self.passes.kernels or Kernels.REFERENCE,
            )
            self._fused = FusedStack(model, kit, self.formats)
        return self._fused

    def forward_packed(self, packed: PackedPass, *, hidden_layers: tuple[int, ...] = ()) -> TargetOutput:
        """Run a pass of constant shape; device work only, so that it can be recorded. See ``api.GraphTarget``."""
        logits_TV, hidden_TD = self.fused(packed, hidden_layers)
        return TargetOutput(logits_RV=logits_TV, hidden_TD=hidden_TD)

    def _forward_fused(
        self, layout: RoundLayout, tokens_T: torch.Tensor, tables: Tables, hidden_layers: tuple[int, ...]
    ) -> TargetOutput:
        check_tables(tables, self.backend.spec, layout.num_reqs)
        rows_R = None
        if len(layout.logit_rows) < layout.num_tokens:
            rows_R = torch.tensor(layout.logit_rows, dtype=torch.int64, device=self.device)
        logits_RV, hidden_TD = self.fused(packed_pass(layout, tokens_T, tables), hidden_layers, rows_R)
        return TargetOutput(logits_RV=logits_RV, hidden_TD=hidden_TD)

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


def packed_pass(layout: RoundLayout, tokens_T: torch.Tensor, tables: Tables) -> PackedPass:
    """A layout as device tensors."""
    lines_2T = torch.tensor([layout.positions, layout.token_reqs], dtype=torch.int32).to(tokens_T.device)
    return PackedPass(tokens_T=tokens_T, positions_T=lines_2T[0], reqs_T=lines_2T[1], tables=tables)
