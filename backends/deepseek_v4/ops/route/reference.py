"""route in torch: the maths of ``moe.Router``."""

from functools import reduce

import torch

from backends.deepseek_v4.moe import affinities, choose_experts, routing_weights
from backends.deepseek_v4.ops.route.values import Routing


def route(
    parts_PTE: torch.Tensor,
    tokens_T: torch.Tensor,
    *,
    bias_E: torch.Tensor | None,
    expert_table_Vk: torch.Tensor | None,
    k: int,
    normalise: bool,
    factor: float,
) -> Routing:
    """See ``route`` of the package."""
    scores_TE = affinities(reduce(torch.add, parts_PTE.unbind(0)))
    if expert_table_Vk is None:
        ids_Tk = choose_experts(scores_TE, bias_E, k)
    else:
        ids_Tk = expert_table_Vk[tokens_T.clamp(0, expert_table_Vk.shape[0] - 1)]
    weights_Tk = routing_weights(scores_TE, ids_Tk, normalise=normalise, factor=factor)
    return Routing(ids_Tk=ids_Tk.int(), weights_Tk=weights_Tk)
