"""FusedStack: the target's layers and head over packed passes; owns the weights as operators read them."""

from dataclasses import dataclass

import torch

from backends.deepseek_v4.config import DeepseekV4Config
from backends.deepseek_v4.fused.layer import FusedContext, StreamState, run_layer
from backends.deepseek_v4.fused.weights import LayerWeights, MixWeights, WeightFormats, join, layer_weights
from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.model import DeepseekV4Model
from backends.deepseek_v4.ops.hyper import mix_dots, mix_head
from backends.deepseek_v4.ops.linear import linear
from backends.deepseek_v4.ops.pass_angles import pass_angles
from backends.deepseek_v4.ops.pass_indices import pass_indices
from backends.deepseek_v4.pass_values import IndexShape
from backends.deepseek_v4.plan_types import PlanSpec
from backends.deepseek_v4.pool import CachePool
from backends.deepseek_v4.rope import Rotary
from backends.deepseek_v4.stored_weight import StoredWeight
from backends.vendor.flash_mla import StepSchedules
from specdec.api import LAST_LAYER, PackedPass


@dataclass(frozen=True, kw_only=True, slots=True)
class PassKit:
    """What makes the context of the passes over one pool.

    window, compress  angles of the two kinds of layers; None for a stack without compressing ones
    """

    pool: CachePool
    shape: IndexShape
    window: Rotary
    compress: Rotary | None
    kernels: Kernels


def pass_context(packed: PackedPass, kit: PassKit, config: DeepseekV4Config) -> FusedContext:
    """Index lists and angles of a pass, computed on its device."""
    return FusedContext(
        packed=packed,
        indices=pass_indices(packed, kit.shape, kernels=kit.kernels),
        angles=pass_angles(
            packed.positions_T,
            kit.window.inv_freq,
            None if kit.compress is None else kit.compress.inv_freq,
            kit.shape.kinds,
            kernels=kit.kernels,
        ),
        pool=kit.pool,
        config=config,
        max_context=kit.shape.max_context,
        kernels=kit.kernels,
        schedules=StepSchedules.on(kit.pool.device) if kit.kernels is Kernels.FLASH_MLA else None,
    )


class FusedStack:
    """Runs the target's layers as fused operators; made once per model, its joined weights are the model's own.

    layers  weights of each layer
    head    output head
    """

    def __init__(self, model: DeepseekV4Model, kit: PassKit, formats: WeightFormats) -> None:
        dtype = model.embed.weight.dtype
        self._model, self._kit = model, kit
        self.layers: tuple[LayerWeights, ...] = tuple(layer_weights(block, dtype, formats) for block in model.layers)
        self.head: StoredWeight = join([model.head], dtype)
        self._head_mix = MixWeights.of(model.hc_head, model.norm)

    @torch.inference_mode()
    def __call__(
        self, packed: PackedPass, hidden_layers: tuple[int, ...], logit_rows_R: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits float32 [R, V], and the flattened streams [T, S * D] of ``hidden_layers`` side by side.

        ``logit_rows_R`` int64 picks the tokens whose logits are wanted; None: all.
        """
        context = pass_context(packed, self._kit, self._model.config)
        last = len(self.layers) - 1
        wanted = [last if layer == LAST_LAYER else layer for layer in hidden_layers]
        states = {}
        streams_TSD = self._model.embed_streams(packed.tokens_T).contiguous()
        dots_TNP = mix_dots(streams_TSD, self.layers[0].attn_mix.fn_MX, kernels=context.kernels)
        state = StreamState(streams_TSD=streams_TSD, dots_TNP=dots_TNP)
        for i, weights in enumerate(self.layers):
            next_mix = self._head_mix if i == last else self.layers[i + 1].attn_mix
            state = run_layer(context, i, weights, state, next_mix.fn_MX)
            if i in wanted:
                states[i] = state.streams_TSD.flatten(1)
        if logit_rows_R is not None:
            state = StreamState(
                streams_TSD=state.streams_TSD.index_select(0, logit_rows_R),
                dots_TNP=state.dots_TNP.index_select(0, logit_rows_R),
            )
        logits_RV = head_logits(context, state, self._head_mix, self.head)
        hidden = [states[layer] for layer in wanted]
        hidden_TD = None if not hidden else hidden[0] if len(hidden) == 1 else torch.cat(hidden, dim=1)
        return logits_RV, hidden_TD


def head_logits(context: FusedContext, state: StreamState, mix: MixWeights, head: StoredWeight) -> torch.Tensor:
    """Logits float32 [T, V] of final streams."""
    config = context.config
    x_TD = mix_head(
        state.dots_TNP,
        state.streams_TSD,
        mix.base,
        mix.scale,
        mix.norm_D,
        eps=config.rms_norm_eps,
        hc_eps=config.hc_eps,
        kernels=context.kernels,
    )
    (logits_TV,) = linear(x_TD, head, splits=1, kernels=context.kernels)
    return logits_TV


def index_shape(spec: PlanSpec) -> IndexShape:
    """Index constants of the layers that ``spec`` describes."""
    return IndexShape(
        groups=spec.groups,
        kinds=spec.kinds,
        window_tokens=spec.window_tokens,
        max_context=spec.max_context,
        index_topk=spec.index_topk,
    )
