"""experts: which implementation."""

import torch

from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.experts import reference
from backends.deepseek_v4.ops.experts.values import ExpertWeights
from backends.deepseek_v4.ops.route.values import Routing

__all__ = ["ExpertWeights", "experts"]


def experts(
    x_TD: torch.Tensor,
    routing: Routing,
    routed: ExpertWeights,
    shared: ExpertWeights,
    *,
    limit: float,
    kernels: Kernels,
) -> torch.Tensor:
    """Outputs fp32 [k + 1, T, D] whose sum over the first dim is the mixture; the shared expert is the last.

    x_TD     fp32 or bf16, last dim contiguous; intermediate activations are rounded to its dtype
    routing  ids in 0 to E - 1, different ones for a token
    limit    clips gate (above) and up (both sides); 0 clips nothing

    A routing weight multiplies the activations between the two products. The bits of a token's outputs do not depend on
    T up to 64. The kernel reads an expert's weights once for up to 16 of its tokens (32 or 64 where it has many).
    """
    assert x_TD.shape[0] == routing.ids_Tk.shape[0], "one row of x for each row of the routing"
    if kernels is Kernels.REFERENCE or x_TD.shape[0] == 0:
        return reference.experts(x_TD, routing, routed, shared, limit=limit)
    from backends.deepseek_v4.ops.experts import kernel

    return kernel.experts(x_TD, routing, routed, shared, limit=limit)
