"""Root-mean-square normalisation in as few operations as torch allows."""

import torch


class RowNorm:
    """``weight * x / sqrt(mean(x^2) + eps)`` over the last axis of float32 tensors; None: no weight."""

    def __init__(self, weight: torch.Tensor | None, eps: float) -> None:
        self._weight = None if weight is None else weight.detach().float().clone()
        self._eps = torch.tensor(eps)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        normed = x * torch.addcmul(self._eps, norm, norm, value=1.0 / x.shape[-1]).rsqrt_()
        return normed if self._weight is None else normed.mul_(self._weight)
