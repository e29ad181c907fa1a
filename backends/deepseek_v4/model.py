"""DeepseekV4Model: embedding, layers and head, under the parameter names of the official checkpoint.

How a pass attends is not here: ``dense`` runs whole sequences, ``paged`` runs cached ones.
"""

import torch
import torch.nn.functional as F
from torch import nn

from backends.deepseek_v4.block import Block
from backends.deepseek_v4.config import DeepseekV4Config
from backends.deepseek_v4.hyper_connections import HyperWeights, collapse
from backends.deepseek_v4.norms import RMSNorm
from backends.deepseek_v4.rope import Rotary

_FLOAT32_SUFFIXES = ("_fn", "_base", "_scale", ".attn_sink", ".ape", ".gate.weight", ".gate.bias")
_FLOAT32_PARTS = (".compressor.wkv.", ".compressor.wgate.")


class DeepseekV4Model(nn.Module):
    """The target's parameters and the steps that do not depend on a cache."""

    def __init__(self, config: DeepseekV4Config) -> None:
        super().__init__()
        self.config = config
        width = config.hc_mult * config.hidden_size
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.hc_head_fn = nn.Parameter(torch.zeros(config.hc_mult, width))
        self.hc_head_base = nn.Parameter(torch.zeros(config.hc_mult))
        self.hc_head_scale = nn.Parameter(torch.ones(1))
        self.window_rotary = Rotary(config.window_rope)
        self.compress_rotary = Rotary(config.compress_rope)

    @property
    def hc_head(self) -> HyperWeights:
        return HyperWeights(fn=self.hc_head_fn, base=self.hc_head_base, scale=self.hc_head_scale)

    def embed_streams(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Start streams [..., S, D] of ``token_ids`` int64 [...]: every stream is the embedding."""
        embedded = self.embed(token_ids).unsqueeze(-2)
        return embedded.expand(*token_ids.shape, self.config.hc_mult, self.config.hidden_size)

    def hidden(self, streams: torch.Tensor) -> torch.Tensor:
        """Normalised head inputs [..., D] of final streams [..., S, D]; gather the wanted rows before."""
        return self.norm(collapse(streams, self.hc_head, self.config))

    def logits(self, streams: torch.Tensor) -> torch.Tensor:
        """Logits, float32 [..., V], of final streams [..., S, D]."""
        return head_logits(self.hidden(streams), self.head)


def head_logits(hidden: torch.Tensor, head: nn.Linear) -> torch.Tensor:
    """Logits, float32 [..., V]; the product runs in float32 unless autocast lowers it."""
    return F.linear(hidden.float(), head.weight.float()).float()


def stays_float32(name: str) -> bool:
    """Whether a parameter is kept in float32 when a model is cast to a narrower type.

    These are the hyper-connections, router, sinks and compressor projections, which compute in float32.
    """
    return name.endswith(_FLOAT32_SUFFIXES) or any(part in name for part in _FLOAT32_PARTS)


def cast_parameters(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast floating parameters to ``dtype`` in place, except those that stay float32."""
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(torch.float32 if stays_float32(name) else dtype)
