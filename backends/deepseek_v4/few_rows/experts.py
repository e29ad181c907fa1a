"""FewRowsExperts: router, chosen experts and shared expert for a few float32 tokens on the CPU.

The gate is part of the shared expert's product; choice and weights are worked out on the host; an expert that
nobody chose is not touched. Same mathematics as ``moe``.
"""

from collections.abc import Sequence
from math import exp, log1p, sqrt

import numpy as np
import torch

from backends.deepseek_v4.few_rows.mixing import float_tensor
from backends.deepseek_v4.few_rows.products import product_of
from backends.deepseek_v4.moe import ExpertPath, MixtureOfExperts

TINY = torch.finfo(torch.float32).tiny
# Above this softplus(x) is x, as torch has it.
LINEAR = 20.0


class FewRowsExperts:
    """Fused copies of one layer's expert weights; made once, never trained."""

    def __init__(self, ffn: MixtureOfExperts, *, all_experts: bool, half: bool) -> None:
        """Copy the weights.

        all_experts  evaluate every expert for every token in products of constant shape
        half         allow weights in half precision; see ``product_of``
        """
        self._all, self._experts = all_experts, ffn.experts
        self._limit, self._width = ffn.experts.limit, ffn.experts.w1.shape[1]
        self._k, self._normalise, self._factor = ffn.gate.k, ffn.gate.normalise, ffn.gate.factor
        self._sizes = (2 * self._width, ffn.gate.weight.shape[0])
        shared = ffn.shared_experts
        self._shared_up = product_of([shared.w1.weight, shared.w3.weight, ffn.gate.weight], half=half)
        self._shared_down = product_of([shared.w2.weight], half=half)
        pairs = () if all_experts else zip(ffn.experts.w1, ffn.experts.w3, strict=True)
        self._ups = [product_of([w1, w3], half=half) for w1, w3 in pairs]
        self._downs = [] if all_experts else [product_of([w2], half=half) for w2 in ffn.experts.w2]
        self._bias = None if ffn.gate.is_hash else ffn.gate.bias.tolist()
        self._table = ffn.gate.tid2eid.tolist() if ffn.gate.is_hash else None

    def __call__(self, x_TD: torch.Tensor, token_ids: list[int]) -> torch.Tensor:
        """Output [T, D] of normalised ``x_TD`` for tokens ``token_ids``."""
        up_TF, gate_TE = self._shared_up(x_TD).split_with_sizes(self._sizes, 1)
        chosen = [self._choose(row, token) for row, token in zip(gate_TE.tolist(), token_ids, strict=True)]
        if self._all:
            return self._shared(up_TF) + self._routed_by_all(x_TD, chosen)
        pairs = sorted((e, t, w) for t, choice in enumerate(chosen) for e, w in choice)
        return self._run(x_TD, up_TF, pairs)

    def _choose(self, logits: list[float], token: int) -> list[tuple[int, float]]:
        """(expert, weight) of one token: best first, the lowest id on ties."""
        scores = [sqrt(log1p(exp(x))) if x < LINEAR else sqrt(x) for x in logits]
        if self._table is not None:
            ids = self._table[token]
        else:
            biased = [s + b for s, b in zip(scores, self._bias, strict=True)]
            ids = sorted(range(len(biased)), key=biased.__getitem__, reverse=True)[: self._k]
        total = max(sum([scores[e] for e in ids]), TINY) if self._normalise else 1.0
        return [(e, scores[e] / total * self._factor) for e in ids]

    def _run(self, x_TD: torch.Tensor, up_TF: torch.Tensor, pairs: list[tuple[int, int, float]]) -> torch.Tensor:
        """Shared expert and the (expert, token, weight) pairs, sorted by expert: one product per chosen expert."""
        num_tokens = len(x_TD)
        experts, tokens, weights = zip(*pairs, strict=True)
        if num_tokens == 1:
            chosen, sizes = experts, [1] * len(pairs)
            rows_PD, weights_TP = x_TD.expand(len(pairs), -1), float_tensor(weights).unsqueeze(0)
        else:
            chosen = sorted(set(experts))
            sizes = [experts.count(e) for e in chosen]
            # NumPy gathers a few rows in a fraction of the time that torch takes.
            rows_PD = torch.from_numpy(x_TD.numpy()[list(tokens)])
            weights_TP = _spread(weights, tokens, num_tokens)
        ups = [self._ups[e](part) for e, part in zip(chosen, rows_PD.split_with_sizes(sizes), strict=True)]
        active = _activate(torch.cat([up_TF, *ups]), self._width, self._limit)
        shared, *routed = active.split_with_sizes([num_tokens, *sizes])
        downs = [self._downs[e](part) for e, part in zip(chosen, routed, strict=True)]
        return self._shared_down(shared).addmm_(weights_TP, torch.cat(downs))

    def _shared(self, up_TF: torch.Tensor) -> torch.Tensor:
        return self._shared_down(_activate(up_TF, self._width, self._limit))

    def _routed_by_all(self, x_TD: torch.Tensor, chosen: list[list[tuple[int, float]]]) -> torch.Tensor:
        ids_TK = torch.tensor([[e for e, _ in choice] for choice in chosen])
        weights_TK = torch.tensor([[w for _, w in choice] for choice in chosen])
        return self._experts(x_TD, ids_TK, weights_TK, ExpertPath.ALL)


def _spread(weights: Sequence[float], tokens: Sequence[int], num_tokens: int) -> torch.Tensor:
    """Matrix [T, P] that adds up the outputs of P pairs: the weight of pair p in the row of its token."""
    weights_TP = np.zeros((num_tokens, len(weights)), dtype=np.float32)
    weights_TP[tokens, range(len(weights))] = weights
    return torch.from_numpy(weights_TP)


def _activate(joined_PF: torch.Tensor, width: int, limit: float) -> torch.Tensor:
    """``moe.expert_activation`` of gate and up side by side, which are overwritten; [P, width]."""
    gate, up = joined_PF.split_with_sizes((width, width), 1)
    if limit > 0:
        gate, up = gate.clamp_max_(limit), up.clamp_(-limit, limit)
    return torch.nn.functional.silu(gate).mul_(up)
