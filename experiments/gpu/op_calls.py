"""Every operator called as a packed pass calls it, over random weights and caches of any sizes.

No model is built. On the device ``meta`` nothing is computed either: only what is launched counts then.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from backends.deepseek_v4.cache_groups import AttentionKind, CacheLayout
from backends.deepseek_v4.config import DeepseekV4Config
from backends.deepseek_v4.fused.layer import FusedContext, StreamState, run_layer
from backends.deepseek_v4.fused.stack import PassKit, pass_context
from backends.deepseek_v4.fused.weights import LayerWeights, MixWeights, store
from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.experts.values import ExpertWeights
from backends.deepseek_v4.ops.finish_inputs.values import CompressorInputs, LayerInputs
from backends.deepseek_v4.ops.gather_rows import gather_rows
from backends.deepseek_v4.ops.hyper import mix_dots, mix_head
from backends.deepseek_v4.ops.join_streams import join_streams
from backends.deepseek_v4.ops.linear import linear
from backends.deepseek_v4.ops.norm_rows import norm_rows
from backends.deepseek_v4.pass_values import IndexShape
from backends.deepseek_v4.passes import target_layout
from backends.deepseek_v4.pool import CachePool
from backends.deepseek_v4.rope import Rotary
from backends.deepseek_v4.stored_weight import StoredWeight, WeightFormat
from specdec.api import GroupTable, PackedPass
from specdec.cache.spec import CacheGroupSpec, ceil_div


@dataclass(frozen=True, kw_only=True, slots=True)
class Storage:
    """Types of activations, caches and weights; quantised routed experts are ``experts``."""

    dtype: torch.dtype = torch.bfloat16
    cache_dtype: str = "bf16"
    indexer_dtype: str = "plain"
    linears: WeightFormat = WeightFormat.PLAIN
    experts: WeightFormat = WeightFormat.PLAIN


@dataclass(frozen=True, kw_only=True, slots=True)
class OpSetting:
    """What the operators are called with.

    config      sizes; its layers are called in order
    storage     types
    num_tokens  T; the last of several tokens is padding
    num_reqs    requests that the tokens belong to, in turn
    context     positions of every request; the newest are the pass
    """

    config: DeepseekV4Config
    storage: Storage
    num_tokens: int
    num_reqs: int
    context: int
    device: torch.device

    def floats(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Random values."""
        return torch.randn(*shape, dtype=dtype, device=self.device)

    def stored(self, form: WeightFormat, *shape: int, dtype: torch.dtype | None = None) -> StoredWeight:
        """A random weight [..., O, I] whose products have about unit scale."""
        values = self.floats(*shape, dtype=self.storage.dtype if dtype is None else dtype)
        return store(values.mul_(shape[-1] ** -0.5), form, self.storage.dtype)

    def expert_weights(self, form: WeightFormat, *lead: int) -> ExpertWeights:
        hidden, width = self.config.hidden_size, self.config.moe_intermediate_size
        return ExpertWeights(
            w1=self.stored(form, *lead, width, hidden),
            w3=self.stored(form, *lead, width, hidden),
            w2=self.stored(form, *lead, hidden, width),
        )

    def mix_weights(self, rows: int, scales: int) -> MixWeights:
        streams, hidden = self.config.hc_mult, self.config.hidden_size
        return MixWeights(
            fn_MX=self.floats(rows, streams * hidden).mul_((streams * hidden) ** -0.5),
            base=self.floats(rows),
            scale=self.floats(scales),
            norm_D=self.floats(hidden),
        )

    def layer_weights(self, kind: AttentionKind, *, is_hash: bool) -> LayerWeights:
        """Weights of a layer in the forms that ``fused.weights`` gives them."""
        config, form = self.config, self.storage.linears
        heads = config.num_attention_heads * config.head_dim
        low = config.o_groups * config.o_lora_rank
        inputs = self._layer_inputs(kind)
        latent, rest = inputs.q_lora + inputs.head_dim, inputs.num_columns - inputs.q_lora - inputs.head_dim
        is_joined = form is WeightFormat.PLAIN or not rest
        matrices = [inputs.num_columns] if is_joined else [latent, rest]
        forms = [form, WeightFormat.PLAIN]
        index_queries = inputs.index_heads * config.index_head_dim
        experts, k, streams = config.n_routed_experts, config.num_experts_per_tok, config.hc_mult
        table_Vk = torch.arange(config.vocab_size * k, device=self.device).view(-1, k) % experts
        return LayerWeights(
            kind=kind,
            attn_mix=self.mix_weights((2 + streams) * streams, 3),
            ffn_mix=self.mix_weights((2 + streams) * streams, 3),
            inputs=tuple(self.stored(f, rows, config.hidden_size) for f, rows in zip(forms, matrices, strict=False)),
            queries=(self.stored(form, heads + index_queries, config.q_lora_rank),),
            layer_inputs=inputs,
            entry_norms=(self.floats(config.head_dim), self.floats(config.index_head_dim)),
            out_a=self.stored(form, low, heads // config.o_groups),
            out_b=self.stored(form, config.hidden_size, low),
            sinks_H=self.floats(config.num_attention_heads),
            router=self.stored(WeightFormat.PLAIN, experts, config.hidden_size, dtype=torch.float32),
            router_bias_E=None if is_hash else self.floats(experts),
            router_table_Vk=table_Vk if is_hash else None,
            routed=self.expert_weights(self.storage.experts, experts),
            shared=self.expert_weights(form),
        )

    def _layer_inputs(self, kind: AttentionKind) -> LayerInputs:
        config, is_csa = self.config, kind is AttentionKind.CSA
        blocks = 2 if is_csa else 1
        return LayerInputs(
            q_lora=config.q_lora_rank,
            head_dim=config.head_dim,
            q_norm=self.floats(config.q_lora_rank),
            kv_norm=self.floats(config.head_dim),
            eps=config.rms_norm_eps,
            compressor=self._compressor(kind, blocks * config.head_dim) if kind.compresses else None,
            index=self._compressor(kind, blocks * config.index_head_dim) if is_csa else None,
            index_heads=config.index_n_heads if is_csa else 0,
            index_scale=config.index_head_dim**-0.5 if is_csa else 0.0,
        )

    def _compressor(self, kind: AttentionKind, channels: int) -> CompressorInputs:
        return CompressorInputs(ratio=kind.ratio, channels=channels, ape=self.floats(kind.ratio, channels))

    def packed(self, groups: Mapping[str, CacheGroupSpec]) -> PackedPass:
        """The newest positions of every request, over tables of consecutive pages."""
        device, each = self.device, ceil_div(self.num_tokens, self.num_reqs)
        offsets_T = torch.arange(self.num_tokens, device=device)
        positions_T = self.context - each + offsets_T % each
        if self.num_tokens > 1:
            positions_T[-1] = -1
        return PackedPass(
            tokens_T=offsets_T % self.config.vocab_size,
            positions_T=positions_T.int(),
            reqs_T=(offsets_T // each).int(),
            tables={group_id: self._table(spec) for group_id, spec in groups.items()},
        )

    def _table(self, spec: CacheGroupSpec) -> GroupTable:
        columns = spec.pages_for(self.context)
        pages = 1 + torch.arange(self.num_reqs * columns, dtype=torch.int32, device=self.device)
        bases_B = torch.zeros(self.num_reqs, dtype=torch.int32, device=self.device)
        return GroupTable(pages_BC=pages.view(self.num_reqs, columns), base_B=bases_B if spec.is_sliding else None)


def run_ops(setting: OpSetting, kernels: Kernels) -> torch.Tensor:
    """One pass through the layers of the setting, the head and the entry of a NextN layer; logits [T, V]."""
    config, storage = setting.config, setting.storage
    layout = target_layout(config, cache_dtype=storage.cache_dtype, indexer_dtype=storage.indexer_dtype)
    context = op_context(setting, layout.slice_layers(0, config.num_hidden_layers), kernels)
    layers = [
        setting.layer_weights(kind, is_hash=layer < config.num_hash_layers)
        for layer, kind in enumerate(context.pool.kinds)
    ]
    head_mix = setting.mix_weights(config.hc_mult, 1)
    streams_TSD = _entered_streams(setting, kernels)
    dots_TNP = mix_dots(streams_TSD, layers[0].attn_mix.fn_MX, kernels=kernels)
    state = StreamState(streams_TSD=streams_TSD, dots_TNP=dots_TNP)
    for layer, weights in enumerate(layers):
        next_mix = layers[layer + 1].attn_mix if layer + 1 < len(layers) else head_mix
        state = run_layer(context, layer, weights, state, next_mix.fn_MX)
    x_TD = mix_head(
        state.dots_TNP,
        state.streams_TSD,
        head_mix.base,
        head_mix.scale,
        head_mix.norm_D,
        eps=config.rms_norm_eps,
        hc_eps=config.hc_eps,
        kernels=kernels,
    )
    head = setting.stored(WeightFormat.PLAIN, config.vocab_size, config.hidden_size)
    (logits_TV,) = linear(x_TD, head, splits=1, kernels=kernels)
    return logits_TV


def op_context(setting: OpSetting, layout: CacheLayout, kernels: Kernels) -> FusedContext:
    """The context of ``setting.packed`` over caches of ``layout`` with room for all its requests."""
    config = setting.config
    groups = {spec.group_id: spec for spec in layout.group_specs()}
    pages = {group_id: 1 + setting.num_reqs * spec.pages_for(setting.context) for group_id, spec in groups.items()}
    pool = CachePool(layout, pages, device=setting.device)
    for layer, kind in enumerate(pool.kinds):
        if kind.compresses:
            pool.state(layer).normal_()
        if kind is AttentionKind.CSA:
            pool.index_state(layer).normal_()
    packed = setting.packed(groups)
    shape = IndexShape(
        groups=groups,
        kinds=layout.compressing_kinds,
        window_tokens=config.sliding_window,
        max_context=setting.context,
        index_topk=config.index_topk,
    )
    kit = PassKit(
        pool=pool,
        shape=shape,
        window=Rotary(config.window_rope).to(setting.device),
        compress=Rotary(config.compress_rope).to(setting.device),
        kernels=kernels,
    )
    return pass_context(packed, kit, config)


def _entered_streams(setting: OpSetting, kernels: Kernels) -> torch.Tensor:
    """Streams [T, S, D] as a NextN layer makes them from previous ones and a token."""
    config, dtype, eps = setting.config, setting.storage.dtype, setting.config.rms_norm_eps
    num_streams, hidden = config.hc_mult, config.hidden_size
    weight = setting.stored(setting.storage.linears, hidden, hidden)
    rows = [setting.floats(setting.num_tokens * times, hidden, dtype=dtype) for times in (num_streams, 1)]
    parts = [linear(norm_rows(x, setting.floats(hidden), eps, kernels=kernels), weight, kernels=kernels) for x in rows]
    return join_streams(*parts, num_streams=num_streams, dtype=dtype, kernels=kernels)


def run_others(setting: OpSetting) -> tuple[torch.Tensor, ...]:
    """Kernels that no pass of ``Kernels.TRITON`` launches: what surrounds FlashMLA, and the Sinkhorn of training.

    Results: decoded cache rows, attention results turned back, gradients.
    """
    # Imported here, since the help of a benchmark must not need Triton.
    from backends.deepseek_v4.ops.sinkhorn import kernel as sinkhorn
    from backends.deepseek_v4.ops.sparse_attention.kernel_combine import unrotate

    config, storage, num_tokens = setting.config, setting.storage, setting.num_tokens
    rows = target_layout(config, cache_dtype=storage.cache_dtype, indexer_dtype=storage.indexer_dtype).swa_rows
    buffer = rows.allocate(2, setting.device)
    slots_X = torch.arange(-1, 2 * rows.rows_per_page, dtype=torch.int32, device=setting.device)
    decoded_XD = gather_rows(buffer, rows, slots_X, dtype=storage.dtype, kernels=Kernels.TRITON)
    o_THD = setting.floats(num_tokens, config.num_attention_heads, config.head_dim, dtype=storage.dtype)
    turned_TX = unrotate(o_THD, setting.floats(num_tokens, 2, config.qk_rope_head_dim // 2))
    rounds, eps = config.hc_sinkhorn_iters, config.hc_eps
    logits_TSS = setting.floats(num_tokens, config.hc_mult, config.hc_mult)
    comb_TSS, sums = sinkhorn.forward(logits_TSS, rounds, eps)
    return decoded_XD, turned_TX, sinkhorn.backward(torch.ones_like(comb_TSS), comb_TSS, sums, rounds, eps)
