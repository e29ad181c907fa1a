"""Routed and shared experts in plain torch: every expert for every token, then a choice."""

import torch

from backends.deepseek_v4.moe import expert_activation
from backends.deepseek_v4.ops.experts.values import ExpertWeights
from backends.deepseek_v4.ops.route.values import Routing


def experts(
    x_TD: torch.Tensor, routing: Routing, routed: ExpertWeights, shared: ExpertWeights, *, limit: float
) -> torch.Tensor:
    """See the package; products in fp32, activations rounded once to the dtype of x."""
    ids_kT, weights_kT = routing.ids_Tk.long().T, routing.weights_Tk.T
    token_T = torch.arange(x_TD.shape[0], device=x_TD.device)
    active_ETI = _activations(x_TD, routed, limit)
    active_kTI = (active_ETI[ids_kT, token_T] * weights_kT.unsqueeze(-1)).to(x_TD.dtype)
    all_EkTD = torch.einsum("kti,edi->ektd", active_kTI.float(), routed.w2.dense().float())
    slot_kT = torch.arange(ids_kT.shape[0], device=x_TD.device).unsqueeze(1).expand_as(ids_kT)
    shared_TI = _activations(x_TD, shared, limit).to(x_TD.dtype).float()
    shared_TD = shared_TI @ shared.w2.dense().float().T
    return torch.cat([all_EkTD[ids_kT, slot_kT, token_T], shared_TD.unsqueeze(0)])


def _activations(x_TD: torch.Tensor, weights: ExpertWeights, limit: float) -> torch.Tensor:
    """fp32 ``silu(gate) * up`` of every token, [T, I] or [E, T, I]."""
    gate, up = (x_TD.float() @ each.dense().float().transpose(-1, -2) for each in (weights.w1, weights.w3))
    return expert_activation(gate, up, limit)
