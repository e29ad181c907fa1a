"""Root-mean-square normalisation in as few operations as torch allows."""

import torch


class RowNorm:
    """``weight * x / sqrt(mean(x^2) + eps)`` over the last axis of float32 tensors.

    With D values in a row the divisor is ``sqrt(|x|^2 + D * eps) / sqrt(D)``: the hypotenuse of two lengths.
    """

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        dim = weight.shape[-1]
        self._weight = weight.detach().float() * dim**0.5
        self._floor = torch.tensor((dim * eps) ** 0.5)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x.div(torch.hypot(norm, self._floor)).mul_(self._weight)
