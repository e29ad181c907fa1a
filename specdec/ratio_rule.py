"""The token ratio rule as pure functions of probabilities; knows no noise, no requests and no vocabulary size.

Leviathan, Kalman and Matias, "Fast inference from transformers via speculative decoding" (2023), algorithm 1: accept
a drafted token x with probability min(1, p(x) / q(x)), and after a rejection draw from relu(p - q), normalised.
Functions take tensors of any floating type, so the same code decides a round and is enumerated exactly in tests.
"""

import torch


def acceptance(target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """Probability of accepting a token that has probability ``target`` and was drawn with probability ``draft``.

    A token that its reported law cannot have drawn (``draft`` 0) is treated as a point mass: accepted with p.
    """
    return (target / torch.where(draft > 0, draft, 1.0)).clamp(max=1.0)


def residual(target_V: torch.Tensor, draft_V: torch.Tensor) -> torch.Tensor:
    """Unnormalised law [..., V] of the correction after a rejection.

    Where rounding leaves nothing of it (p equal to q: a rejection has probability zero), the target's own law.
    """
    left_V = (target_V - draft_V).clamp(min=0.0)
    return torch.where(left_V.sum(dim=-1, keepdim=True) > 0, left_V, target_V)


def overlap(target_V: torch.Tensor, draft_V: torch.Tensor) -> torch.Tensor:
    """Sum over x of min(p, q) [...]: the acceptance rate of the rule at one position."""
    return torch.minimum(target_V, draft_V).sum(dim=-1)
