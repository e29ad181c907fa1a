"""Indexer: which compressed rows a query of a CSA layer attends to; knows no cache.

Keys are rows of the indexer's own compressor; queries come from the attention's query latent.
"""

import torch
from torch import nn

from backends.deepseek_v4.compressor import Compressor
from backends.deepseek_v4.config import CSA_RATIO, DeepseekV4Config
from backends.deepseek_v4.rope import Rope, apply_rope


class Indexer(nn.Module):
    """Scores of compressed rows for queries: a weighted sum over heads of rectified products."""

    def __init__(self, config: DeepseekV4Config) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.topk = config.index_n_heads, config.index_head_dim, config.index_topk
        self.scale = self.head_dim**-0.5 * self.num_heads**-0.5
        self.wq_b = nn.Linear(config.q_lora_rank, self.num_heads * self.head_dim, bias=False)
        self.weights_proj = nn.Linear(config.hidden_size, self.num_heads, bias=False)
        self.compressor = Compressor(config, CSA_RATIO, self.head_dim)

    def query(self, latent: torch.Tensor, rope: Rope) -> torch.Tensor:
        """Rotated queries [..., Hi, di] of the attention's normalised latent [..., q_lora_rank]."""
        q = self.wq_b(latent).unflatten(-1, (self.num_heads, self.head_dim))
        return apply_rope(q, rope.per_head())

    def weights(self, x: torch.Tensor) -> torch.Tensor:
        """Head weights, float32 [..., Hi], of normalised layer inputs [..., D]; both scale factors are folded in."""
        return self.weights_proj(x).float() * self.scale

    def scores(self, q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Scores, float32 [..., Q, N], of ``q`` [..., Q, Hi, di], ``weights`` [..., Q, Hi], ``keys`` [..., N, di].

        Keys are cast to the queries' dtype; products are summed over heads in float32.
        """
        flat = q.flatten(-3, -2) @ keys.to(q.dtype).transpose(-1, -2)
        products = flat.unflatten(-2, q.shape[-3:-1]).float()
        return (products.relu() * weights.unsqueeze(-1)).sum(-2)


def select_topk(scores: torch.Tensor, k: int, visible: torch.Tensor) -> torch.Tensor:
    """Indices, int64 [..., k], of the ``k`` largest visible scores: ascending, packed to the left, then -1.

    scores   [..., N]; content where not visible is ignored (it may be NaN)
    visible  bool, broadcasts to [..., N]

    Equal scores are taken from the lowest index on, so a prefix of the rows with the same scores gives the same
    answer whatever N is. Where at most ``k`` rows are visible all of them are returned.
    """
    num = scores.shape[-1]
    masked = scores.masked_fill(~visible, float("-inf"))
    order = torch.sort(masked, dim=-1, descending=True, stable=True).indices[..., :k]
    chosen = torch.gather(visible.expand(scores.shape), -1, order)
    ascending = torch.where(chosen, order, num).sort(dim=-1).values
    packed = torch.where(ascending < num, ascending, -1)
    return packed if num >= k else torch.nn.functional.pad(packed, (0, k - num), value=-1)


def topk_mask(scores: torch.Tensor, k: int, visible: torch.Tensor) -> torch.Tensor:
    """The same choice as a bool mask [..., N]."""
    if scores.shape[-1] <= k:
        return visible.expand(scores.shape)
    masked = scores.masked_fill(~visible, float("-inf"))
    order = torch.sort(masked, dim=-1, descending=True, stable=True).indices[..., :k]
    chosen = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, True)
    return chosen & visible
