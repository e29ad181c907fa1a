"""Attention: the projections of one layer and the softmax with a sink; knows no cache and no batch layout.

K and V are one vector shared by all heads. Where its keys come from is the caller's affair: the same module
serves whole sequences and paged caches.
"""

import torch
from torch import nn

from backends.deepseek_v4.compressor import Compressor
from backends.deepseek_v4.config import CSA_RATIO, WINDOW_ONLY_RATIO, DeepseekV4Config
from backends.deepseek_v4.indexer import Indexer
from backends.deepseek_v4.norms import RMSNorm, rms_norm
from backends.deepseek_v4.rope import Rope, apply_rope


class Attention(nn.Module):
    """Projections of one layer, with its compressor (ratios 4 and 128) and its indexer (ratio 4), else None."""

    def __init__(self, config: DeepseekV4Config, layer: int) -> None:
        super().__init__()
        self.ratio = config.ratio(layer)
        self.num_heads, self.head_dim = config.num_attention_heads, config.head_dim
        self.num_groups, self.eps = config.o_groups, config.rms_norm_eps
        self.scale = config.softmax_scale
        width = self.num_heads * self.head_dim
        self.attn_sink = nn.Parameter(torch.zeros(self.num_heads))
        self.wq_a = nn.Linear(config.hidden_size, config.q_lora_rank, bias=False)
        self.q_norm = RMSNorm(config.q_lora_rank, config.rms_norm_eps)
        self.wq_b = nn.Linear(config.q_lora_rank, width, bias=False)
        self.wkv = nn.Linear(config.hidden_size, self.head_dim, bias=False)
        self.kv_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
        self.wo_a = nn.Linear(width // self.num_groups, self.num_groups * config.o_lora_rank, bias=False)
        self.wo_b = nn.Linear(self.num_groups * config.o_lora_rank, config.hidden_size, bias=False)
        compresses = self.ratio != WINDOW_ONLY_RATIO
        self.compressor = Compressor(config, self.ratio, config.head_dim) if compresses else None
        self.indexer = Indexer(config) if self.ratio == CSA_RATIO else None

    def project(self, x: torch.Tensor, rope: Rope) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and the query latent of normalised inputs ``x`` [..., D].

        rope     angles of the tokens' positions, [..., r / 2]
        returns  q [..., H, d] normalised per head and rotated; k [..., d] rotated (it is the value as well);
                 the normalised latent [..., q_lora_rank], which also feeds the indexer
        """
        latent = self.q_norm(self.wq_a(x))
        q = self.wq_b(latent).unflatten(-1, (self.num_heads, self.head_dim))
        q = apply_rope(rms_norm(q, None, self.eps), rope.per_head())
        return q, self.key(x, rope), latent

    def key(self, x: torch.Tensor, rope: Rope) -> torch.Tensor:
        """Only the rotated keys [..., d] of ``x`` [..., D]."""
        return apply_rope(self.kv_norm(self.wkv(x)), rope)

    def attend(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        valid: torch.Tensor,
        own_keys: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``attend`` with this layer's sinks and scale."""
        return attend(q, keys, valid, self.attn_sink, self.scale, own_keys)

    def output(self, o: torch.Tensor, rope: Rope) -> torch.Tensor:
        """Layer output [..., D] of ``o`` [..., H, d]: un-rotate at the query's position, project group by group."""
        o = apply_rope(o, rope.per_head(), inverse=True)
        grouped = o.flatten(-2).unflatten(-1, (self.num_groups, -1))
        if self.num_groups == 1:
            low = self.wo_a(grouped.squeeze(-2))
        else:
            weight = self.wo_a.weight.unflatten(0, (self.num_groups, -1))
            low = torch.einsum("...gi,gri->...gr", grouped, weight).flatten(-2)
        return self.wo_b(low)


def attention_scores(q: torch.Tensor, keys: torch.Tensor, scale: float) -> torch.Tensor:
    """Scaled products, float32 [..., Q, H, N], of ``q`` [..., Q, H, d] with ``keys`` [..., N, d]."""
    num_queries, num_heads = q.shape[-3:-1]
    flat = q.flatten(-3, -2) @ keys.transpose(-1, -2)
    return flat.unflatten(-2, (num_queries, num_heads)).float() * scale


def sink_softmax(scores: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    """Softmax over the last axis of ``scores`` [..., H, N] with ``sinks`` [H] in the denominator only.

    Entries of -inf get weight 0; a row without any finite entry is all 0.
    """
    column = sinks.float().unsqueeze(-1)
    limits = torch.finfo(torch.float32)
    # The two floors only matter for a row without any entry under a sink of -inf.
    top = torch.maximum(scores.amax(-1, keepdim=True), column).detach().clamp_min(limits.min)
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True) + torch.exp(column - top)
    return weights / total.clamp_min(limits.tiny)


def attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    valid: torch.Tensor,
    sinks: torch.Tensor,
    scale: float,
    own_keys: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention outputs [..., Q, H, d] of queries that share one set of keys; the reference core.

    q         [..., Q, H, d]
    keys      [..., N, d], also the values; rows that no query may see must still be finite
    valid     bool, broadcasts to [..., Q, N]
    sinks     [H] natural-log weights in the denominator
    own_keys  [..., Q, M, d] further keys, each visible to its own query only
    """
    scores = attention_scores(q, keys, scale).masked_fill(~valid.unsqueeze(-2), float("-inf"))
    num_shared = scores.shape[-1]
    if own_keys is not None:
        own = (q @ own_keys.transpose(-1, -2)).float() * scale
        scores = torch.cat((scores, own), dim=-1)
    weights = sink_softmax(scores, sinks).to(q.dtype)
    num_queries, num_heads = q.shape[-3:-1]
    out = weights[..., :num_shared].flatten(-3, -2) @ keys
    out = out.unflatten(-2, (num_queries, num_heads))
    return out if own_keys is None else out + weights[..., num_shared:] @ own_keys
