"""FewRowsExperts: router, chosen experts and shared expert for a few float32 tokens on the CPU.

The gate is part of the shared expert's product; choice and weights are worked out on the host; an expert that
nobody chose is not touched. Same mathematics as ``moe``.
"""

from math import exp, log1p, sqrt

import torch

from backends.deepseek_v4.moe import ExpertPath, MixtureOfExperts

TINY = torch.finfo(torch.float32).tiny


class FewRowsExperts:
    """Fused copies of one layer's expert weights; made once, never trained."""

    def __init__(self, ffn: MixtureOfExperts, input_weight: torch.Tensor, *, all_experts: bool) -> None:
        """``input_weight`` [D] is the weight of the norm before the experts, folded into their products.

        ``all_experts`` evaluates every expert for every token in products of constant shape.
        """
        self._gate, self._all = ffn.gate, all_experts
        self._experts = ffn.experts
        self._limit, self._width = ffn.experts.limit, ffn.experts.w1.shape[1]
        self._column = input_weight.detach().float()
        shared = ffn.shared_experts
        stacked = torch.cat([shared.w1.weight, shared.w3.weight, ffn.gate.weight]).detach().float()
        self._shared_t = (stacked * self._column).t().contiguous()
        joined_EID = torch.cat([ffn.experts.w1, ffn.experts.w3], dim=1).detach().float() * self._column
        self._up_EDI = () if all_experts else joined_EID.transpose(1, 2).contiguous().unbind(0)
        self._down_EID = ffn.experts.w2.detach().float().transpose(1, 2).contiguous().unbind(0)
        self._shared_down_t = shared.w2.weight.detach().float().t().contiguous()
        self._bias = None if ffn.gate.is_hash else ffn.gate.bias.tolist()
        self._table = ffn.gate.tid2eid.tolist() if ffn.gate.is_hash else None

    def __call__(self, x_TD: torch.Tensor, token_ids: list[int]) -> torch.Tensor:
        """Output [T, D] of ``x_TD``, normalised without a weight."""
        up_TF, gate_TE = torch.mm(x_TD, self._shared_t).split((2 * self._width, self._gate.weight.shape[0]), dim=1)
        chosen = [self._choose(row, token) for row, token in zip(gate_TE.tolist(), token_ids, strict=True)]
        if self._all:
            return self._shared(up_TF) + self._routed_by_all(x_TD, chosen)
        pairs = sorted((e, t, w) for t, choice in enumerate(chosen) for e, w in choice)
        return self._run(x_TD, up_TF, pairs)

    def _choose(self, logits: list[float], token: int) -> list[tuple[int, float]]:
        """(expert, weight) of one token: best first, the lowest id on ties."""
        scores = [sqrt(max(_softplus(x), TINY)) for x in logits]
        if self._table is not None:
            ids = self._table[token]
        else:
            biased = [s + b for s, b in zip(scores, self._bias, strict=True)]
            ids = sorted(range(len(biased)), key=biased.__getitem__, reverse=True)[: self._gate.k]
        total = max(sum(scores[e] for e in ids), TINY) if self._gate.normalise else 1.0
        return [(e, scores[e] / total * self._gate.factor) for e in ids]

    def _run(self, x_TD: torch.Tensor, up_TF: torch.Tensor, pairs: list[tuple[int, int, float]]) -> torch.Tensor:
        """Shared expert and the (expert, token, weight) pairs, sorted by expert."""
        num_tokens, spans, start = len(x_TD), [], 0
        for i, (expert, _, _) in enumerate(pairs):
            # A lone token gets one product per choice, even if a table names an expert twice.
            if num_tokens == 1 or i + 1 == len(pairs) or pairs[i + 1][0] != expert:
                spans.append((expert, start, i + 1))
                start = i + 1
        rows_PD = x_TD.expand(len(pairs), -1) if num_tokens == 1 else x_TD[[t for _, t, _ in pairs]]
        ups = [torch.mm(rows_PD[a:b], self._up_EDI[e]) for e, a, b in spans]
        gate, up = torch.cat([up_TF, *ups]).split(self._width, dim=1)
        active = _activate(gate, up, self._limit)
        active[num_tokens:].mul_(torch.tensor([w for _, _, w in pairs]).unsqueeze(1))
        out_TD = torch.mm(active[:num_tokens], self._shared_down_t)
        downs = [torch.mm(active[num_tokens + a : num_tokens + b], self._down_EID[e]) for e, a, b in spans]
        if num_tokens == 1:
            for down in downs:
                out_TD.add_(down)
            return out_TD
        return out_TD.index_add_(0, torch.tensor([t for _, t, _ in pairs]), torch.cat(downs))

    def _shared(self, up_TF: torch.Tensor) -> torch.Tensor:
        gate, up = up_TF.split(self._width, dim=1)
        return torch.mm(_activate(gate, up, self._limit), self._shared_down_t)

    def _routed_by_all(self, x_TD: torch.Tensor, chosen: list[list[tuple[int, float]]]) -> torch.Tensor:
        ids_TK = torch.tensor([[e for e, _ in choice] for choice in chosen])
        weights_TK = torch.tensor([[w for _, w in choice] for choice in chosen])
        return self._experts(x_TD * self._column, ids_TK, weights_TK, ExpertPath.ALL)


def _activate(gate: torch.Tensor, up: torch.Tensor, limit: float) -> torch.Tensor:
    """``moe.expert_activation``, always in a new tensor."""
    if limit > 0:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return torch.nn.functional.silu(gate).mul_(up)


def _softplus(x: float) -> float:
    return x + log1p(exp(-x)) if x > 0 else log1p(exp(x))
