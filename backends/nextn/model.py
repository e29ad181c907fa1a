"""NextNModel: the one-layer draft module (``mtp.0.*``) over the target's streams; knows no cache.

Slot i holds position i and reads the streams of position i with the embedding of token i + 1; its logits
predict token i + 2. Embedding and head are the target's.
"""

import torch
from torch import nn

from backends.deepseek_v4.block import AttentionStep, Block
from backends.deepseek_v4.config import DeepseekV4Config
from backends.deepseek_v4.hyper_connections import HyperWeights, collapse
from backends.deepseek_v4.model import head_logits
from backends.deepseek_v4.moe import ExpertPath
from backends.deepseek_v4.norms import RMSNorm
from backends.deepseek_v4.rope import Rotary
from specdec.errors import ConfigError


class NextNLayer(Block):
    """A window-only block with the projections that join streams and embeddings, and a head collapse of its own."""

    def __init__(self, config: DeepseekV4Config, layer: int) -> None:
        super().__init__(config, layer)
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.e_proj = nn.Linear(hidden, hidden, bias=False)
        self.h_proj = nn.Linear(hidden, hidden, bias=False)
        self.enorm, self.hnorm, self.norm = RMSNorm(hidden, eps), RMSNorm(hidden, eps), RMSNorm(hidden, eps)
        self.hc_head_fn = nn.Parameter(torch.zeros(config.hc_mult, config.hc_mult * hidden))
        self.hc_head_base = nn.Parameter(torch.zeros(config.hc_mult))
        self.hc_head_scale = nn.Parameter(torch.ones(1))

    @property
    def hc_head(self) -> HyperWeights:
        return HyperWeights(fn=self.hc_head_fn, base=self.hc_head_base, scale=self.hc_head_scale)


class NextNModel(nn.Module):
    """The draft module's parameters and the steps that do not depend on a cache.

    Raises ConfigError if the configuration has no NextN layer.
    """

    def __init__(self, config: DeepseekV4Config) -> None:
        super().__init__()
        if config.num_nextn_predict_layers < 1:
            raise ConfigError("num_nextn_predict_layers must be at least 1 for a NextN drafter, got 0")
        self.config = config
        self.mtp = nn.ModuleList(NextNLayer(config, layer) for layer in config.nextn_layer_ids)
        self.window_rotary = Rotary(config.window_rope)

    @property
    def layer(self) -> NextNLayer:
        return self.mtp[0]

    def combine(self, streams: torch.Tensor, embeddings: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Input streams [..., S, D] from previous streams [..., S, D] and next tokens' embeddings [..., D].

        positions  int [...] of the slots; used only where the configuration zeroes the embedding at position 0
        """
        if self.config.zero_first_nextn_embedding:
            embeddings = embeddings.masked_fill((positions == 0).unsqueeze(-1), 0.0)
        layer = self.layer
        token = layer.e_proj(layer.enorm(embeddings)).unsqueeze(-2)
        return (layer.h_proj(layer.hnorm(streams)) + token).to(streams.dtype)

    def forward(
        self,
        streams: torch.Tensor,
        embeddings: torch.Tensor,
        positions: torch.Tensor,
        token_ids: torch.Tensor,
        attend: AttentionStep,
        path: ExpertPath | None = None,
    ) -> torch.Tensor:
        """Own streams [..., S, D] for the next tokens ``token_ids`` int64 [...], with their embeddings [..., D]."""
        return self.layer(self.combine(streams, embeddings, positions), token_ids, attend, path)

    def hidden(self, streams: torch.Tensor) -> torch.Tensor:
        """Normalised head inputs [..., D] of own streams [..., S, D]; gather the wanted rows before."""
        return self.layer.norm(collapse(streams, self.layer.hc_head, self.config))

    def logits(self, streams: torch.Tensor, head: nn.Linear) -> torch.Tensor:
        """Draft logits, float32 [..., V], of own streams [..., S, D] through the target's head."""
        return head_logits(self.hidden(streams), head)
