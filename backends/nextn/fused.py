"""PackedDraft: the draft module over packed passes, as the fused operators of the target's layers.

A round is ``begin``, then per further token ``advance`` and ``forward``; all of it is device work of constant shape, so
that a recording holds it whole. Between the calls of one round it holds the draft's own streams and the
positions of the next step; nothing survives the next ``begin``.
"""

from dataclasses import replace

import torch
from torch import nn

from backends.deepseek_v4.fused.layer import FusedContext, StreamState, run_layer
from backends.deepseek_v4.fused.stack import PassKit, head_logits, pass_context
from backends.deepseek_v4.fused.weights import MixWeights, WeightFormats, join, layer_weights
from backends.deepseek_v4.ops.hyper import mix_dots
from backends.deepseek_v4.ops.join_streams import join_streams
from backends.deepseek_v4.ops.linear import linear
from backends.deepseek_v4.ops.norm_rows import norm_rows
from backends.nextn.model import NextNModel
from specdec.api import PackedPass
from specdec.errors import MetadataError


class PackedDraft:
    """Owns the draft module's weights as operators read them; embedding and head are the target's."""

    def __init__(
        self, model: NextNModel, kit: PassKit, *, embed: nn.Embedding, head: nn.Linear, formats: WeightFormats
    ) -> None:
        layer, dtype = model.layer, embed.weight.dtype
        self._config, self._kit, self._embed = model.config, kit, embed
        self._layer = layer_weights(layer, dtype, formats)
        self._stream_product = join([layer.h_proj], dtype, formats.linears)
        self._token_product = join([layer.e_proj], dtype, formats.linears)
        self._stream_norm_D = layer.hnorm.weight.detach().float()
        self._token_norm_D = layer.enorm.weight.detach().float()
        self._head_mix = MixWeights.of(layer.hc_head, layer.norm)
        self._head = join([head], dtype)
        self._own: StreamState | None = None
        self._step: PackedPass | None = None

    @torch.inference_mode()
    def begin(
        self, packed: PackedPass, *, hidden_TX: torch.Tensor, next_tokens_T: torch.Tensor, newest_B: torch.Tensor
    ) -> torch.Tensor:
        """Catch up over every row of a pass; logits float32 [B, V] of its rows ``newest_B`` (int64).

        hidden_TX      flattened target streams of the rows, [T, S * D]
        next_tokens_T  int64 token that follows each row
        """
        streams_TSD = hidden_TX.unflatten(1, (self._config.hc_mult, self._config.hidden_size))
        context, state = self._run(replace(packed, tokens_T=next_tokens_T), streams_TSD)
        own = StreamState(
            streams_TSD=state.streams_TSD.index_select(0, newest_B),
            dots_TNP=state.dots_TNP.index_select(0, newest_B),
        )
        positions_B = packed.positions_T.index_select(0, newest_B)
        reqs_B = packed.reqs_T.index_select(0, newest_B)
        self._step = replace(packed, tokens_T=next_tokens_T, positions_T=positions_B, reqs_T=reqs_B)
        return self._logits(context, own)

    def advance(self, seq_lens_B: torch.Tensor) -> None:
        """Prepare a step at position ``seq_lens_B - 1`` (int64); padding requests stay padding."""
        step = self._opened()
        if len(seq_lens_B) != len(step.positions_T):
            raise MetadataError(
                f"the draft was begun with {len(step.positions_T)} requests, got {len(seq_lens_B)} lengths"
            )
        positions_B = torch.where(step.positions_T >= 0, seq_lens_B - 1, -1).int()
        self._step = replace(step, positions_T=positions_B)

    @torch.inference_mode()
    def forward(self, tokens_B: torch.Tensor) -> torch.Tensor:
        """One step with the tokens drafted last, int64 [B]; logits float32 [B, V]."""
        step, own = replace(self._opened(), tokens_T=tokens_B), self._own
        assert own is not None, "begin leaves the draft's own streams"
        context, state = self._run(step, own.streams_TSD)
        return self._logits(context, state)

    def _opened(self) -> PackedPass:
        if self._step is None:
            raise MetadataError("draft metadata was not initialized: begin_draft opens a draft")
        return self._step

    def _run(self, packed: PackedPass, streams_TSD: torch.Tensor) -> tuple[FusedContext, StreamState]:
        """The layer's own streams for previous streams [T, S, D] and the tokens that follow them."""
        config, kernels, eps = self._config, self._kit.kernels, self._config.rms_norm_eps
        context = pass_context(packed, self._kit, config)
        embedded_TD = self._embed(packed.tokens_T)
        if config.zero_first_nextn_embedding:
            embedded_TD = embedded_TD.masked_fill((packed.positions_T == 0).unsqueeze(-1), 0.0)
        token_TD = norm_rows(embedded_TD, self._token_norm_D, eps, kernels=kernels)
        stream_XD = norm_rows(streams_TSD.flatten(0, 1), self._stream_norm_D, eps, kernels=kernels)
        joined_TSD = join_streams(
            linear(stream_XD, self._stream_product, kernels=kernels),
            linear(token_TD, self._token_product, kernels=kernels),
            num_streams=config.hc_mult,
            dtype=streams_TSD.dtype,
            kernels=kernels,
        )
        dots_TNP = mix_dots(joined_TSD, self._layer.attn_mix.fn_MX, kernels=kernels)
        state = StreamState(streams_TSD=joined_TSD, dots_TNP=dots_TNP)
        return context, run_layer(context, 0, self._layer, state, self._head_mix.fn_MX)

    def _logits(self, context: FusedContext, own: StreamState) -> torch.Tensor:
        self._own = own
        return head_logits(context, own, self._head_mix, self._head)
