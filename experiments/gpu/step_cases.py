"""StepCases: every operator of a decode step of one size as kernel cases, with random weights and caches."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from backends.deepseek_v4.cache_groups import AttentionKind
from backends.deepseek_v4.fused.layer import FusedContext, close_entries, compressed_keys, select
from backends.deepseek_v4.fused.weights import LayerWeights
from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.experts import experts
from backends.deepseek_v4.ops.finish_inputs import finish_inputs
from backends.deepseek_v4.ops.finish_queries import finish_queries
from backends.deepseek_v4.ops.hyper import MixedInput, mix_dots, mix_head, mix_in, mix_out
from backends.deepseek_v4.ops.index_queries import index_queries
from backends.deepseek_v4.ops.join_streams import join_streams
from backends.deepseek_v4.ops.linear import joint_linear, linear
from backends.deepseek_v4.ops.norm_rows import norm_rows
from backends.deepseek_v4.ops.pass_angles import pass_angles
from backends.deepseek_v4.ops.pass_indices import pass_indices
from backends.deepseek_v4.ops.route import Routing, route
from backends.deepseek_v4.ops.sparse_attention import KeyList, sparse_attention
from backends.deepseek_v4.pass_values import IndexShape, SlotList
from backends.deepseek_v4.passes import target_layout
from backends.deepseek_v4.rope import Rotary
from backends.deepseek_v4.stored_weight import StoredWeight
from experiments.gpu.kernel_case import KernelCase, dense, rows_bytes
from experiments.gpu.op_calls import OpSetting, op_context

CSA, HCA = AttentionKind.CSA, AttentionKind.HCA
FEW_EXPERTS = 8


class StepCases:
    """The operators of a CSA layer, of an HCA layer where they differ, of the head and of a NextN entry.

    Weights of a layer exist ``num_copies`` times, those of the routed experts once: their routings differ instead.
    """

    def __init__(self, setting: OpSetting, kernels: Kernels, *, num_copies: int) -> None:
        self.setting, self.kernels = setting, kernels
        config, storage = setting.config, setting.storage
        layout = target_layout(config, cache_dtype=storage.cache_dtype, indexer_dtype=storage.indexer_dtype)
        layout = layout.slice_layers(0, config.num_hidden_layers)
        self.context = _unpadded(op_context(setting, layout, kernels), setting)
        self.layer = self.context.pool.kinds.index(CSA)
        self.weights = _copies(setting, num_copies)
        dtype, tokens = storage.dtype, setting.num_tokens
        self.x_TD = setting.floats(tokens, config.hidden_size, dtype=dtype)
        self.streams_TSD = setting.floats(tokens, config.hc_mult, config.hidden_size, dtype=dtype)

    def cases(self) -> list[KernelCase]:
        """All of them, in the order of a step."""
        return [
            *self.preparation(),
            *self.mixing(),
            *self.inputs(),
            *self.entries(),
            *self.attention(),
            *self.mixture(),
            *self.head(),
            *self.nextn(),
        ]

    def _case(self, name: str, nbytes: float, call: Callable[[LayerWeights], object]) -> KernelCase:
        return KernelCase(name=name, nbytes=nbytes, calls=tuple(_bound(call, each) for each in self.weights))

    def preparation(self) -> list[KernelCase]:
        """Index lists and angles of a pass."""
        context, kernels, config = self.context, self.kernels, self.setting.config
        packed, shape = context.packed, _index_shape(context)
        window, compress = (Rotary(rope).to(self.setting.device) for rope in (config.window_rope, config.compress_rope))
        lists = dense(*(each.slots_TK for each in (context.indices.window, context.indices.hca) if each is not None))
        angles = context.angles
        angle_bytes = dense(angles.window, angles.compress, *angles.entries.values())
        return [
            self._case("pass_indices", 2 * lists, lambda _: pass_indices(packed, shape, kernels=kernels)),
            self._case(
                "pass_angles",
                angle_bytes,
                lambda _: pass_angles(
                    packed.positions_T, window.inv_freq, compress.inv_freq, shape.kinds, kernels=kernels
                ),
            ),
        ]

    def mixing(self) -> list[KernelCase]:
        """Hyper-connections before and after a sub-block."""
        kernels, streams = self.kernels, self.streams_TSD
        first = self.weights[0].attn_mix
        dots = mix_dots(streams, first.fn_MX, kernels=kernels)
        mixed = self._mixed(self.weights[0], dots)
        parts = self.setting.floats(self.setting.config.num_experts_per_tok + 1, len(streams), streams.shape[2])
        after = mix_out(parts, streams, mixed.post_TS, mixed.comb_TSS, first.fn_MX, kernels=kernels)
        return [
            self._case(
                "mix_dots",
                dense(streams, first.fn_MX, dots),
                lambda w: mix_dots(streams, w.attn_mix.fn_MX, kernels=kernels),
            ),
            self._case(
                "mix_in",
                dense(dots, streams, first.norm_D, mixed.x_TD, mixed.post_TS, mixed.comb_TSS),
                lambda w: self._mixed(w, dots),
            ),
            self._case(
                f"mix_out of {len(parts)} parts",
                dense(parts, streams, mixed.post_TS, mixed.comb_TSS, first.fn_MX, *after),
                lambda w: mix_out(parts, streams, mixed.post_TS, mixed.comb_TSS, w.attn_mix.fn_MX, kernels=kernels),
            ),
        ]

    def _mixed(self, weights: LayerWeights, dots_TNP: torch.Tensor) -> MixedInput:
        config, mix = self.setting.config, weights.attn_mix
        return mix_in(
            dots_TNP,
            self.streams_TSD,
            mix.base,
            mix.scale,
            mix.norm_D,
            num_rounds=config.hc_sinkhorn_iters,
            eps=config.rms_norm_eps,
            hc_eps=config.hc_eps,
            kernels=self.kernels,
        )

    def inputs(self) -> list[KernelCase]:
        """Input and query projections and what finishes them."""
        context, kernels, x_TD, first = self.context, self.kernels, self.x_TD, self.weights[0]
        pool, layer, dtype = context.pool, self.layer, self.x_TD.dtype
        angles, config = context.angles.of(CSA), self.setting.config

        def finish(weights: LayerWeights, parts_PTO: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
            return finish_inputs(
                parts_PTO, context.indices, angles, weights.layer_inputs, pool, layer, dtype=dtype, kernels=kernels
            )

        parts = joint_linear(x_TD, first.inputs, kernels=kernels)
        latent, head_weights = finish(first, parts)
        queries = joint_linear(latent, first.queries, kernels=kernels)
        split = config.num_attention_heads * config.head_dim
        own, index = queries[:, :, :split], queries[:, :, split:]
        sizes = {"num_heads": config.num_attention_heads, "head_dim": config.head_dim, "eps": config.rms_norm_eps}
        q_THD = finish_queries(own, **sizes, angles_T2R=angles, dtype=dtype, kernels=kernels)
        index_sizes = {"num_heads": config.index_n_heads, "head_dim": config.index_head_dim}
        index_rows = pool.index_rows(layer)
        q_TJD = index_queries(index, **index_sizes, angles_T2R=angles, rows=index_rows, dtype=dtype, kernels=kernels)
        states = pool.state_rows(layer).row_bytes + pool.index_state_rows(layer).row_bytes
        written = len(x_TD) * (pool.swa_rows.row_bytes + states)
        return [
            self._case(
                "product: layer inputs",
                _stored(first.inputs) + dense(x_TD, parts),
                lambda w: joint_linear(x_TD, w.inputs, kernels=kernels),
            ),
            self._case("finish_inputs", dense(parts, latent, head_weights) + written, lambda w: finish(w, parts)),
            self._case(
                "product: queries",
                _stored(first.queries) + dense(latent, queries),
                lambda w: joint_linear(latent, w.queries, kernels=kernels),
            ),
            self._case(
                "finish_queries",
                own.numel() * own.element_size() + dense(q_THD),
                lambda _: finish_queries(own, **sizes, angles_T2R=angles, dtype=dtype, kernels=kernels),
            ),
            self._case(
                "index_queries",
                index.numel() * index.element_size() + dense(q_TJD),
                lambda _: index_queries(
                    index, **index_sizes, angles_T2R=angles, rows=index_rows, dtype=dtype, kernels=kernels
                ),
            ),
        ]

    def entries(self) -> list[KernelCase]:
        """Compressed rows of both kinds; every token of the pass closes one."""
        context, found = self.context, []
        for kind in (CSA, HCA):
            layer = context.pool.kinds.index(kind)
            state_bytes = context.pool.state_rows(layer).row_bytes
            out_bytes = context.pool.compressed_rows(layer).row_bytes
            if kind is CSA:
                state_bytes += context.pool.index_state_rows(layer).row_bytes
                out_bytes += context.pool.index_rows(layer).row_bytes
            closed = int((context.indices.entry_slots[kind] >= 0).sum())
            nbytes = closed * (kind.state_window * state_bytes + out_bytes)
            found.append(
                self._case(
                    f"compress {kind.name}",
                    nbytes,
                    lambda w, kind=kind, layer=layer: close_entries(context, layer, replace(w, kind=kind)),
                )
            )
        return found

    def attention(self) -> list[KernelCase]:
        """Attention over a window and compressed rows, and the output projections."""
        context, config, kernels, first = self.context, self.setting.config, self.kernels, self.weights[0]
        pool, dtype, tokens = context.pool, self.x_TD.dtype, len(self.x_TD)
        heads, dim = config.num_attention_heads, config.head_dim
        q_THD = self.setting.floats(tokens, heads, dim, dtype=dtype)
        window = KeyList(buffer=pool.swa(self.layer), rows=pool.swa_rows, slots=context.indices.window)
        hca_layer = pool.kinds.index(HCA)
        extras: dict[str, KeyList | None] = {
            "window": None,
            "CSA": compressed_keys(pool, self.layer, self._selected()),
            "HCA": None if context.indices.hca is None else compressed_keys(pool, hca_layer, context.indices.hca),
        }
        o_TX = self.setting.floats(tokens, heads * dim, dtype=dtype)
        (low_TX,) = linear(o_TX, first.out_a, groups=config.o_groups, splits=1, dtype=dtype, kernels=kernels)
        parts = linear(low_TX, first.out_b, kernels=kernels)

        def attend(weights: LayerWeights, extra: KeyList | None) -> torch.Tensor:
            return sparse_attention(
                q_THD,
                window,
                extra,
                weights.sinks_H,
                scale=config.softmax_scale,
                angles_T2R=context.angles.of(CSA),
                kernels=kernels,
            )

        read = {name: rows_bytes(window) + (0 if each is None else rows_bytes(each)) for name, each in extras.items()}
        return [
            *(
                self._case(
                    f"attention: {name}", read[name] + dense(q_THD, o_TX), lambda w, extra=extra: attend(w, extra)
                )
                for name, extra in extras.items()
            ),
            self._case(
                "product: output, grouped",
                first.out_a.nbytes + dense(o_TX, low_TX),
                lambda w: linear(o_TX, w.out_a, groups=config.o_groups, splits=1, dtype=dtype, kernels=kernels),
            ),
            self._case(
                "product: output",
                first.out_b.nbytes + dense(low_TX, parts),
                lambda w: linear(low_TX, w.out_b, kernels=kernels),
            ),
        ]

    def _selected(self) -> SlotList:
        config, tokens = self.setting.config, len(self.x_TD)
        queries = self.setting.floats(1, tokens, config.index_n_heads * config.index_head_dim)
        head_weights = self.setting.floats(tokens, config.index_n_heads)
        return select(self.context, self.layer, queries, head_weights, self.x_TD.dtype)

    def mixture(self) -> list[KernelCase]:
        """Router and experts."""
        config, kernels, x_TD, first = self.setting.config, self.kernels, self.x_TD, self.weights[0]
        tokens_T = self.context.packed.tokens_T
        logits = linear(x_TD, first.router, kernels=kernels)

        def routed(weights: LayerWeights) -> Routing:
            return route(
                logits,
                tokens_T,
                bias_E=weights.router_bias_E,
                expert_table_Vk=None,
                k=config.num_experts_per_tok,
                normalise=config.norm_topk_prob,
                factor=config.routed_scaling_factor,
                kernels=kernels,
            )

        routings = [_random_routing(self.setting) for _ in self.weights]
        each = sum(_expert_bytes(weight) for weight in (first.routed.w1, first.routed.w3, first.routed.w2))
        shared = sum(weight.nbytes for weight in (first.shared.w1, first.shared.w3, first.shared.w2))
        distinct = sum(len(routing.ids_Tk.unique()) for routing in routings) / len(routings)
        out_bytes = (config.num_experts_per_tok + 1) * len(x_TD) * config.hidden_size * 4
        calls = tuple(
            _bound(
                lambda pair: experts(
                    x_TD, pair[0], first.routed, pair[1].shared, limit=config.swiglu_limit, kernels=kernels
                ),
                pair,
            )
            for pair in zip(routings, self.weights, strict=True)
        )
        nbytes = distinct * each + shared + dense(x_TD) + out_bytes
        return [
            self._case(
                "product: router",
                first.router.nbytes + dense(x_TD, logits),
                lambda w: linear(x_TD, w.router, kernels=kernels),
            ),
            self._case("route", dense(logits), routed),
            KernelCase(name="experts", nbytes=nbytes, calls=calls),
        ]

    def head(self) -> list[KernelCase]:
        """Collapse of the streams and the output head."""
        setting, kernels, config = self.setting, self.kernels, self.setting.config
        mix = setting.mix_weights(config.hc_mult, 1)
        dots = mix_dots(self.streams_TSD, mix.fn_MX, kernels=kernels)
        head = setting.stored(setting.storage.linears.PLAIN, config.vocab_size, config.hidden_size)
        logits_bytes = len(self.x_TD) * config.vocab_size * 4
        eps = {"eps": config.rms_norm_eps, "hc_eps": config.hc_eps}
        return [
            self._case(
                "mix_head",
                dense(dots, self.streams_TSD, self.x_TD),
                lambda _: mix_head(dots, self.streams_TSD, mix.base, mix.scale, mix.norm_D, **eps, kernels=kernels),
            ),
            self._case(
                "product: head",
                head.nbytes + dense(self.x_TD) + logits_bytes,
                lambda _: linear(self.x_TD, head, splits=1, kernels=kernels),
            ),
        ]

    def nextn(self) -> list[KernelCase]:
        """How a NextN layer begins."""
        setting, kernels, config = self.setting, self.kernels, self.setting.config
        rows_XD, norm_D = self.streams_TSD.flatten(0, 1), setting.floats(config.hidden_size)
        square = setting.stored(setting.storage.linears, config.hidden_size, config.hidden_size)
        streams_PXD, token_PTD = (linear(rows, square, kernels=kernels) for rows in (rows_XD, self.x_TD))
        return [
            self._case(
                "norm_rows",
                2 * dense(rows_XD),
                lambda _: norm_rows(rows_XD, norm_D, config.rms_norm_eps, kernels=kernels),
            ),
            self._case(
                "join_streams",
                dense(streams_PXD, token_PTD, self.streams_TSD),
                lambda _: join_streams(
                    streams_PXD, token_PTD, num_streams=config.hc_mult, dtype=rows_XD.dtype, kernels=kernels
                ),
            ),
        ]


def _bound(call: Callable[[object], object], argument: object) -> Callable[[], object]:
    return lambda: call(argument)


def _unpadded(context: FusedContext, setting: OpSetting) -> FusedContext:
    """The same with every token at the last position, which closes entries of both kinds."""
    packed = replace(context.packed, positions_T=torch.full_like(context.packed.positions_T, setting.context - 1))
    indices = pass_indices(packed, _index_shape(context), kernels=context.kernels)
    return replace(context, packed=packed, indices=indices)


def _index_shape(context: FusedContext) -> IndexShape:
    layout = context.pool.layout
    return IndexShape(
        groups={spec.group_id: spec for spec in layout.group_specs()},
        kinds=layout.compressing_kinds,
        window_tokens=context.config.sliding_window,
        max_context=context.max_context,
        index_topk=context.config.index_topk,
    )


def _copies(setting: OpSetting, num_copies: int) -> list[LayerWeights]:
    """Weights of CSA layers with the same routed experts."""
    first = setting.layer_weights(CSA, is_hash=False)
    few = max(FEW_EXPERTS, setting.config.num_experts_per_tok)
    small = replace(setting, config=replace(setting.config, n_routed_experts=few))
    others = [small.layer_weights(CSA, is_hash=False) for _ in range(num_copies - 1)]
    kept = {"routed": first.routed, "router": first.router, "router_bias_E": first.router_bias_E}
    return [first, *(replace(each, **kept) for each in others)]


def _random_routing(setting: OpSetting) -> Routing:
    config, tokens = setting.config, setting.num_tokens
    scores_TE = torch.rand(tokens, config.n_routed_experts, device=setting.device)
    ids_Tk = scores_TE.argsort(1)[:, : config.num_experts_per_tok].int().contiguous()
    return Routing(ids_Tk=ids_Tk, weights_Tk=torch.rand(ids_Tk.shape, device=setting.device))


def _stored(weights: Sequence[StoredWeight]) -> int:
    return sum(weight.nbytes for weight in weights)


def _expert_bytes(weight: StoredWeight) -> float:
    return weight.nbytes / weight.values.shape[0]
