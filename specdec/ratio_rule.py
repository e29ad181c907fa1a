"""The token ratio rule as pure functions of probabilities; knows no noise, no requests and no vocabulary size.

Leviathan, Kalman and Matias, "Fast inference from transformers via speculative decoding" (2023), algorithm 1: accept
a drafted token x with probability min(1, p(x) / q(x)), and after a rejection draw from relu(p - q), normalised.
Functions take tensors of any floating type, or arrays of fractions: the same code decides a round and is judged.
"""

import torch

from specdec.rules import numbers
from specdec.rules.numbers import Array


def acceptance(target: Array, draft: Array) -> Array:
    """Probability of accepting a token that has probability ``target`` and was drawn with probability ``draft``.

    A token that its reported law cannot have drawn (``draft`` 0) is treated as a point mass: accepted with p.
    """
    return numbers.at_most_one(target / numbers.where(draft > 0, draft, 1))


def residual(target_V: Array, draft_V: Array) -> Array:
    """Unnormalised law [..., V] of the correction after a rejection.

    Where rounding leaves nothing of it (p equal to q: a rejection has probability zero), the target's own law.
    """
    left_V = numbers.positive_part(target_V - draft_V)
    return numbers.where(numbers.total(left_V)[..., None] > 0, left_V, target_V)


def overlap(target_V: torch.Tensor, draft_V: torch.Tensor) -> torch.Tensor:
    """Sum over x of min(p, q) [...]: the acceptance rate of the rule at one position."""
    return torch.minimum(target_V, draft_V).sum(dim=-1)
