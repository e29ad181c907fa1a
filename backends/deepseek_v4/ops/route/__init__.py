"""route: from the logits of a gate to experts and weights; which implementation."""

import torch

from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.route import reference
from backends.deepseek_v4.ops.route.values import Routing

__all__ = ["Routing", "route"]


def route(
    parts_PTE: torch.Tensor,
    tokens_T: torch.Tensor,
    *,
    bias_E: torch.Tensor | None,
    expert_table_Vk: torch.Tensor | None,
    k: int,
    normalise: bool,
    factor: float,
    kernels: Kernels,
) -> Routing:
    """The k experts of each token and their weights, in one launch (DeepSeek-V4's gate, ``moe.Router``).

    parts_PTE        float32 logits in P parts, added in order (any strides)
    tokens_T         int64 token ids, read with a table only
    bias_E           float32 added to the scores for the selection only; None in hash layers
    expert_table_Vk  int64 experts of every token id in hash layers; else None

    Scores are ``sqrt(softplus(logit))``. Chosen are the largest biased scores, best first, the lowest id among equal
    ones; or the table's row of the token (an id outside of the table, as padding may have, is moved to its end).
    Weights are the chosen scores, divided by their sum if ``normalise``, times ``factor``. A token's result depends
    on its own logits only.
    """
    assert (bias_E is None) != (expert_table_Vk is None), "a layer has either a bias or a table of experts"
    assert 1 <= k <= parts_PTE.shape[2], f"{k} of {parts_PTE.shape[2]} experts"
    assert expert_table_Vk is None or expert_table_Vk.shape[1] == k, "the table names k experts"
    if kernels is Kernels.REFERENCE:
        implementation = reference
    else:
        from backends.deepseek_v4.ops.route import kernel as implementation
    return implementation.route(
        parts_PTE,
        tokens_T,
        bias_E=bias_E,
        expert_table_Vk=expert_table_Vk,
        k=k,
        normalise=normalise,
        factor=factor,
    )
