"""sinkhorn: which implementation."""

import torch

from backends.deepseek_v4.ops.sinkhorn import autograd, reference

__all__ = ["sinkhorn"]


def sinkhorn(logits: torch.Tensor, num_rounds: int, eps: float) -> torch.Tensor:
    """The reference's result: one operator on CUDA and where a gradient is wanted, plain torch otherwise."""
    if logits.is_cuda or (torch.is_grad_enabled() and logits.requires_grad):
        return autograd.sinkhorn(logits, num_rounds, eps)
    return reference.sinkhorn(logits, num_rounds, eps)
