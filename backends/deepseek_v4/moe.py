"""Mixture of experts: router, experts and shared expert of one layer.

Three ways to evaluate the same routed sum differ only in speed; the caller may name one (``ExpertPath``).
"""

from enum import Enum
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import nn

from backends.deepseek_v4.config import DeepseekV4Config


class ExpertPath(Enum):
    """How the routed experts are evaluated.

    ALL       every expert for every token in three large products; differentiable, no gather, any device
    GATHERED  the chosen experts' weights are copied out per token; fixed shapes, no host read, few tokens
    LOOPED    one product per chosen expert, over its tokens; reads the expert ids on the host
    """

    ALL = "all"
    GATHERED = "gathered"
    LOOPED = "looped"


def expert_activation(gate: torch.Tensor, up: torch.Tensor, limit: float) -> torch.Tensor:
    """``silu(min(gate, limit)) * clip(up, -limit, limit)``; a limit of 0 clips nothing."""
    if limit > 0:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return F.silu(gate) * up


def router_scores(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Affinities ``sqrt(softplus(W x))``, float32 [..., E], whatever autocast says."""
    with torch.autocast(x.device.type, enabled=False):
        return affinities(F.linear(x.float(), weight.float()))


def affinities(logits: torch.Tensor) -> torch.Tensor:
    """``sqrt(softplus(logits))`` of float32 logits."""
    # The floor keeps the gradient of the square root finite where softplus underflows.
    return F.softplus(logits).clamp_min(torch.finfo(torch.float32).tiny).sqrt()


def choose_experts(scores: torch.Tensor, bias: torch.Tensor, k: int) -> torch.Tensor:
    """Ids, int64 [..., k], of the largest ``scores + bias``, best first; equal values take the lowest id."""
    return torch.sort(scores.detach() + bias, dim=-1, descending=True, stable=True).indices[..., :k]


def routing_weights(scores: torch.Tensor, ids: torch.Tensor, *, normalise: bool, factor: float) -> torch.Tensor:
    """Weights, float32 [..., k]: the chosen scores (never the bias), divided by their sum, times ``factor``."""
    chosen = scores.gather(-1, ids)
    if normalise:
        chosen = chosen / chosen.sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    return chosen * factor


class Router(nn.Module):
    """Gate of one layer: learned selection with a bias, or (hash layers) a table by token id."""

    def __init__(self, config: DeepseekV4Config, layer: int) -> None:
        super().__init__()
        self.k, self.normalise, self.factor = (
            config.num_experts_per_tok,
            config.norm_topk_prob,
            config.routed_scaling_factor,
        )
        self.is_hash = config.is_hash_routed(layer)
        self.weight = nn.Parameter(torch.zeros(config.n_routed_experts, config.hidden_size))
        if self.is_hash:
            self.register_buffer("tid2eid", torch.zeros(config.vocab_size, self.k, dtype=torch.int64))
        else:
            # Balanced by the trainer's own rule, never by a gradient.
            self.bias = nn.Parameter(torch.zeros(config.n_routed_experts), requires_grad=False)

    def forward(self, x: torch.Tensor, token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Expert ids int64 [..., k] and weights float32 [..., k] of ``x`` [..., D] for tokens ``token_ids`` [...]."""
        scores = router_scores(x, self.weight)
        ids = self.tid2eid[token_ids] if self.is_hash else choose_experts(scores, self.bias, self.k)
        return ids, routing_weights(scores, ids, normalise=self.normalise, factor=self.factor)


class Experts(nn.Module):
    """The routed experts, stacked: ``w1`` (gate) and ``w3`` (up) [E, I, D], ``w2`` (down) [E, D, I]."""

    def __init__(self, config: DeepseekV4Config) -> None:
        super().__init__()
        num, width, hidden = config.n_routed_experts, config.moe_intermediate_size, config.hidden_size
        self.limit = config.swiglu_limit
        self.w1 = nn.Parameter(torch.empty(num, width, hidden))
        self.w2 = nn.Parameter(torch.empty(num, hidden, width))
        self.w3 = nn.Parameter(torch.empty(num, width, hidden))
        for weight in (self.w1, self.w2, self.w3):
            nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)

    def forward(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, path: ExpertPath | None = None
    ) -> torch.Tensor:
        """Weighted sum [..., D] of the chosen experts' outputs; ``path`` None picks by device, gradient and size."""
        flat, flat_ids, flat_weights = (each.reshape(-1, each.shape[-1]) for each in (x, ids, weights))
        path = self._default_path(flat, flat_ids) if path is None else path
        run = {
            ExpertPath.ALL: self._all,
            ExpertPath.GATHERED: self._gathered,
            ExpertPath.LOOPED: self._looped,
        }[path]
        return run(flat, flat_ids, flat_weights).view(x.shape)

    def _default_path(self, x: torch.Tensor, ids: torch.Tensor) -> ExpertPath:
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return ExpertPath.ALL
        if not x.is_cuda:
            return ExpertPath.LOOPED
        return ExpertPath.GATHERED if ids.numel() <= self.w1.shape[0] else ExpertPath.ALL

    def _all(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Routing weights, zero where not chosen, scale the activations; the last product sums over experts."""
        num, width, hidden = self.w1.shape
        dense = torch.zeros(x.shape[0], num, device=x.device, dtype=weights.dtype).scatter_add(-1, ids, weights)
        gate, up = F.linear(x, self.w1.flatten(0, 1)), F.linear(x, self.w3.flatten(0, 1))
        active = expert_activation(gate, up, self.limit).unflatten(-1, (num, width))
        scaled = (active * dense.unsqueeze(-1).to(active.dtype)).flatten(-2)
        return F.linear(scaled, self.w2.transpose(0, 1).reshape(hidden, num * width)).to(x.dtype)

    def _gathered(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        row = x.unsqueeze(1).unsqueeze(-1)
        gate, up = (self.w1[ids] @ row).squeeze(-1), (self.w3[ids] @ row).squeeze(-1)
        active = expert_activation(gate, up, self.limit) * weights.unsqueeze(-1).to(x.dtype)
        return (self.w2[ids] @ active.unsqueeze(-1)).squeeze(-1).sum(1)

    def _looped(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 0:
            return torch.zeros_like(x)
        order = ids.flatten().argsort(stable=True)
        tokens = order // ids.shape[-1]
        counts = torch.bincount(ids.flatten(), minlength=self.w1.shape[0]).tolist()
        spans = [(e, end - n, end) for e, (n, end) in enumerate(zip(counts, accumulate(counts), strict=True)) if n]
        rows = x[tokens]
        gate = torch.cat([F.linear(rows[a:b], self.w1[e]) for e, a, b in spans])
        up = torch.cat([F.linear(rows[a:b], self.w3[e]) for e, a, b in spans])
        active = expert_activation(gate, up, self.limit) * weights.flatten()[order].unsqueeze(-1).to(x.dtype)
        down = torch.cat([F.linear(active[a:b], self.w2[e]) for e, a, b in spans])
        return torch.zeros_like(x).index_add_(0, tokens, down)


class SharedExpert(nn.Module):
    """The expert that every token passes: ``w2(silu(w1 x) * w3 x)`` with the same clamp."""

    def __init__(self, config: DeepseekV4Config) -> None:
        super().__init__()
        self.limit = config.swiglu_limit
        self.w1 = nn.Linear(config.hidden_size, config.moe_intermediate_size, bias=False)
        self.w2 = nn.Linear(config.moe_intermediate_size, config.hidden_size, bias=False)
        self.w3 = nn.Linear(config.hidden_size, config.moe_intermediate_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(expert_activation(self.w1(x), self.w3(x), self.limit))


class MixtureOfExperts(nn.Module):
    """Routed plus shared experts of one layer."""

    def __init__(self, config: DeepseekV4Config, layer: int) -> None:
        super().__init__()
        self.gate = Router(config, layer)
        self.experts = Experts(config)
        self.shared_experts = SharedExpert(config)

    def forward(self, x: torch.Tensor, token_ids: torch.Tensor, path: ExpertPath | None = None) -> torch.Tensor:
        """Output [..., D] of normalised inputs ``x`` [..., D]; hash layers need the tokens' own ids [...]."""
        ids, weights = self.gate(x, token_ids)
        return self.experts(x, ids, weights, path) + self.shared_experts(x)
