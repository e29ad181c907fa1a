"""Sinkhorn-Knopp projection of small square matrices towards doubly stochastic ones, in plain torch."""

import torch


def sinkhorn(logits: torch.Tensor, num_rounds: int, eps: float) -> torch.Tensor:
    """Non-negative [..., S, S] float32 with row and column sums close to 1.

    Round one is a softmax over the last axis plus ``eps``, then a division by the column sums; every further
    round divides by row sums, then by column sums. ``eps`` is added to every sum.
    """
    out = torch.softmax(logits, dim=-1) + eps
    out = out / (out.sum(-2, keepdim=True) + eps)
    for _ in range(num_rounds - 1):
        out = out / (out.sum(-1, keepdim=True) + eps)
        out = out / (out.sum(-2, keepdim=True) + eps)
    return out
