"""One layer of a packed pass as a sequence of operators; every step is device work of constant shape.

The sub-blocks hand over *parts*: partial results whose sum is the sub-block's output. The hyper-connections add them
up, write the new streams and begin the projections of the next sub-block in the same operator.
"""

from dataclasses import dataclass

import torch

from backends.deepseek_v4.cache_groups import (
    INDEX_STATE_GROUP,
    AttentionKind,
    compressed_group,
    state_group,
)
from backends.deepseek_v4.config import DeepseekV4Config
from backends.deepseek_v4.fused.weights import LayerWeights, MixWeights
from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.compress import EntryCache, compress
from backends.deepseek_v4.ops.experts import experts
from backends.deepseek_v4.ops.finish_inputs import finish_inputs
from backends.deepseek_v4.ops.finish_queries import finish_queries
from backends.deepseek_v4.ops.hyper import MixedInput, mix_in, mix_out
from backends.deepseek_v4.ops.index_queries import index_queries
from backends.deepseek_v4.ops.index_scores import index_scores
from backends.deepseek_v4.ops.linear import joint_linear, linear
from backends.deepseek_v4.ops.route import route
from backends.deepseek_v4.ops.select_rows import select_rows
from backends.deepseek_v4.ops.sparse_attention import KeyList, sparse_attention
from backends.deepseek_v4.pass_values import PassAngles, PassIndices, SlotList
from backends.deepseek_v4.pool import CachePool
from backends.vendor.flash_mla import StepSchedules
from specdec.api import PackedPass, Tables


@dataclass(frozen=True, kw_only=True, slots=True)
class FusedContext:
    """What all layers of a pass share.

    schedules  FlashMLA's planning objects of this pass; None with other kernels
    """

    packed: PackedPass
    indices: PassIndices
    angles: PassAngles
    pool: CachePool
    config: DeepseekV4Config
    max_context: int
    kernels: Kernels
    schedules: StepSchedules | None

    @property
    def tables(self) -> Tables:
        return self.packed.tables


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamState:
    """The residual streams between sub-blocks.

    streams_TSD  the streams
    dots_TNP     parts of the next sub-block's projections of them
    """

    streams_TSD: torch.Tensor
    dots_TNP: torch.Tensor


def run_layer(
    context: FusedContext, layer: int, weights: LayerWeights, state: StreamState, next_fn_MX: torch.Tensor
) -> StreamState:
    """The state after a layer; ``layer`` counts within the pool, ``next_fn_MX`` is what follows it."""
    mixed = enter(context, state, weights.attn_mix)
    parts_PTD = attend(context, layer, weights, mixed.x_TD)
    state = leave(context, parts_PTD, state, mixed, weights.ffn_mix.fn_MX)
    mixed = enter(context, state, weights.ffn_mix)
    parts_QTD = feed_forward(context, weights, mixed.x_TD)
    return leave(context, parts_QTD, state, mixed, next_fn_MX)


def enter(context: FusedContext, state: StreamState, mix: MixWeights) -> MixedInput:
    """The normalised input of a sub-block."""
    config = context.config
    return mix_in(
        state.dots_TNP,
        state.streams_TSD,
        mix.base,
        mix.scale,
        mix.norm_D,
        num_rounds=config.hc_sinkhorn_iters,
        eps=config.rms_norm_eps,
        hc_eps=config.hc_eps,
        kernels=context.kernels,
    )


def leave(
    context: FusedContext, parts_QTD: torch.Tensor, state: StreamState, mixed: MixedInput, fn_MX: torch.Tensor
) -> StreamState:
    """The streams after a sub-block whose output is the sum of ``parts_QTD``."""
    streams_TSD, dots_TNP = mix_out(
        parts_QTD, state.streams_TSD, mixed.post_TS, mixed.comb_TSS, fn_MX, kernels=context.kernels
    )
    return StreamState(streams_TSD=streams_TSD, dots_TNP=dots_TNP)


def attend(context: FusedContext, layer: int, weights: LayerWeights, x_TD: torch.Tensor) -> torch.Tensor:
    """Parts [P, T, D] of the attention output; writes the layer's caches."""
    kernels, config, pool = context.kernels, context.config, context.pool
    angles_T2R = context.angles.of(weights.kind)
    inputs_PTO = joint_linear(x_TD, weights.inputs, kernels=kernels)
    latent_TL, index_weights_TJ = finish_inputs(
        inputs_PTO, context.indices, angles_T2R, weights.layer_inputs, pool, layer, dtype=x_TD.dtype, kernels=kernels
    )
    queries_PTX = joint_linear(latent_TL, weights.queries, kernels=kernels)
    num_heads, head_dim = config.num_attention_heads, config.head_dim
    q_THD = finish_queries(
        queries_PTX[:, :, : num_heads * head_dim],
        num_heads=num_heads,
        head_dim=head_dim,
        angles_T2R=angles_T2R,
        eps=config.rms_norm_eps,
        dtype=x_TD.dtype,
        kernels=kernels,
    )
    if weights.kind.compresses:
        close_entries(context, layer, weights)
    extra = context.indices.hca if weights.kind is AttentionKind.HCA else None
    if weights.kind is AttentionKind.CSA:
        extra = select(context, layer, queries_PTX[:, :, num_heads * head_dim :], index_weights_TJ, x_TD.dtype)
    o_TX = sparse_attention(
        q_THD,
        KeyList(buffer=pool.swa(layer), rows=pool.swa_rows, slots=context.indices.window),
        None if extra is None else compressed_keys(pool, layer, extra),
        weights.sinks_H,
        scale=config.softmax_scale,
        angles_T2R=angles_T2R,
        kernels=kernels,
        schedules=context.schedules,
    )
    (low_TX,) = linear(o_TX, weights.out_a, groups=config.o_groups, splits=1, dtype=x_TD.dtype, kernels=kernels)
    return linear(low_TX, weights.out_b, kernels=kernels)


def compressed_keys(pool: CachePool, layer: int, slots: SlotList) -> KeyList:
    """The compressed rows of a layer that ``slots`` name."""
    return KeyList(buffer=pool.compressed(layer), rows=pool.compressed_rows(layer), slots=slots)


def close_entries(context: FusedContext, layer: int, weights: LayerWeights) -> None:
    """Write the compressed rows, and the indexer keys, that tokens of the pass close."""
    pool, kind = context.pool, weights.kind
    caches = [
        EntryCache(
            table=context.tables[state_group(kind)],
            rows_per_page=pool.state_rows(layer).rows_per_page,
            state=pool.state(layer),
            norm_weight=weights.entry_norms[0],
            buffer=pool.compressed(layer),
            rows=pool.compressed_rows(layer),
        )
    ]
    if kind is AttentionKind.CSA:
        keys = EntryCache(
            table=context.tables[INDEX_STATE_GROUP],
            rows_per_page=pool.index_state_rows(layer).rows_per_page,
            state=pool.index_state(layer),
            norm_weight=weights.entry_norms[1],
            buffer=pool.index_keys(layer),
            rows=pool.index_rows(layer),
        )
        caches.append(keys)
    compress(
        context.indices,
        kind,
        caches,
        eps=context.config.rms_norm_eps,
        angles_T2R=context.angles.entries[kind],
        kernels=context.kernels,
    )


def select(
    context: FusedContext, layer: int, queries_PTX: torch.Tensor, weights_TJ: torch.Tensor, dtype: torch.dtype
) -> SlotList:
    """The compressed rows that each token of a CSA layer attends; queries are scored in ``dtype``."""
    config, pool, kernels = context.config, context.pool, context.kernels
    table = context.tables[compressed_group(AttentionKind.CSA)]
    q_TJD = index_queries(
        queries_PTX,
        num_heads=config.index_n_heads,
        head_dim=config.index_head_dim,
        angles_T2R=context.angles.of(AttentionKind.CSA),
        rows=pool.index_rows(layer),
        dtype=dtype,
        kernels=kernels,
    )
    scores_TC = index_scores(
        q_TJD,
        weights_TJ,
        pool.index_keys(layer),
        pool.index_rows(layer),
        table,
        context.indices,
        topk=config.index_topk,
        num_columns=max(1, context.max_context // AttentionKind.CSA.ratio),
        kernels=kernels,
    )
    rows_per_page = pool.compressed_rows(layer).rows_per_page
    return select_rows(scores_TC, context.indices, table, rows_per_page, topk=config.index_topk, kernels=kernels)


def feed_forward(context: FusedContext, weights: LayerWeights, x_TD: torch.Tensor) -> torch.Tensor:
    """Parts [Q, T, D] of the experts' output: one per chosen expert, and the shared one's."""
    config, kernels = context.config, context.kernels
    logits_PTE = linear(x_TD, weights.router, kernels=kernels)
    routing = route(
        logits_PTE,
        context.packed.tokens_T,
        bias_E=weights.router_bias_E,
        expert_table_Vk=weights.router_table_Vk,
        k=config.num_experts_per_tok,
        normalise=config.norm_topk_prob,
        factor=config.routed_scaling_factor,
        kernels=kernels,
    )
    return experts(x_TD, routing, weights.routed, weights.shared, limit=config.swiglu_limit, kernels=kernels)
