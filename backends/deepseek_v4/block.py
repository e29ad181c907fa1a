"""Block: one decoder layer, attention and experts between hyper-connections.

The attention step is handed in, so that whole-sequence and paged passes share everything else.
"""

from collections.abc import Callable

import torch
from torch import nn

from backends.deepseek_v4.attention import Attention
from backends.deepseek_v4.config import DeepseekV4Config
from backends.deepseek_v4.hyper_connections import HyperWeights, mix_in, mix_out
from backends.deepseek_v4.moe import ExpertPath, MixtureOfExperts
from backends.deepseek_v4.norms import RMSNorm

# Normalised inputs [..., D] of a layer's attention -> its output [..., D].
AttentionStep = Callable[[Attention, torch.Tensor], torch.Tensor]


class Block(nn.Module):
    """One layer over S residual streams."""

    def __init__(self, config: DeepseekV4Config, layer: int) -> None:
        super().__init__()
        self.config = config
        num, width = config.hc_mult, config.hc_mult * config.hidden_size
        num_mixes = 2 * num + num * num
        self.attn = Attention(config, layer)
        self.ffn = MixtureOfExperts(config, layer)
        self.attn_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.ffn_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hc_attn_fn = nn.Parameter(torch.zeros(num_mixes, width))
        self.hc_attn_base = nn.Parameter(torch.zeros(num_mixes))
        self.hc_attn_scale = nn.Parameter(torch.ones(3))
        self.hc_ffn_fn = nn.Parameter(torch.zeros(num_mixes, width))
        self.hc_ffn_base = nn.Parameter(torch.zeros(num_mixes))
        self.hc_ffn_scale = nn.Parameter(torch.ones(3))

    @property
    def hc_attn(self) -> HyperWeights:
        return HyperWeights(fn=self.hc_attn_fn, base=self.hc_attn_base, scale=self.hc_attn_scale)

    @property
    def hc_ffn(self) -> HyperWeights:
        return HyperWeights(fn=self.hc_ffn_fn, base=self.hc_ffn_base, scale=self.hc_ffn_scale)

    def forward(
        self,
        streams: torch.Tensor,
        token_ids: torch.Tensor,
        attend: AttentionStep,
        path: ExpertPath | None = None,
    ) -> torch.Tensor:
        """New streams [..., S, D] of ``streams`` [..., S, D] for tokens ``token_ids`` int64 [...].

        attend  runs the layer's attention on its normalised inputs
        path    how experts are evaluated; None picks
        """
        mixed = mix_in(streams, self.hc_attn, self.config)
        streams = mix_out(attend(self.attn, self.attn_norm(mixed.input)), streams, mixed)
        mixed = mix_in(streams, self.hc_ffn, self.config)
        return mix_out(self.ffn(self.ffn_norm(mixed.input), token_ids, path), streams, mixed)
