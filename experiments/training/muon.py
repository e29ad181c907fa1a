"""Muon's arithmetic: orthogonalised momentum of stacked matrices; knows no model and no schedule.

Source: K. Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024).
"""

import torch

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5


def orthogonalise(matrices_XRC: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The nearest matrices with singular values near 1 (0.7 to 1.2), by Newton-Schulz; float32 [X, R, C].

    All X matrices run as one batched product per step, in ``dtype``.
    """
    x = matrices_XRC.to(dtype)
    wide = x if x.shape[-2] <= x.shape[-1] else x.mT
    wide = wide / (wide.float().norm(dim=(-2, -1), keepdim=True) + 1e-7).to(dtype)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = wide @ wide.mT
        poly = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        wide = torch.baddbmm(wide, poly, wide, beta=a)
    return (wide if x.shape[-2] <= x.shape[-1] else wide.mT).float()


def muon_step(
    masters_XRC: torch.Tensor,
    momentum_XRC: torch.Tensor,
    gradient_XRC: torch.Tensor,
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
) -> None:
    """Move ``masters_XRC`` and ``momentum_XRC`` in place by one Nesterov step; weight decay is decoupled."""
    momentum_XRC.lerp_(gradient_XRC, 1 - momentum)
    # bf16 is enough for directions, but only a GPU multiplies it faster.
    dtype = torch.bfloat16 if masters_XRC.is_cuda else torch.float32
    update = orthogonalise(gradient_XRC.lerp(momentum_XRC, momentum), dtype)
    rows, columns = masters_XRC.shape[-2:]
    masters_XRC.mul_(1 - lr * weight_decay)
    masters_XRC.add_(update, alpha=-lr * max(1.0, rows / columns) ** 0.5)
