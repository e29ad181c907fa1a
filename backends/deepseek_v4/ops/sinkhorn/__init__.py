"""sinkhorn: which implementation."""

import torch

from backends.deepseek_v4.ops.sinkhorn import autograd, host, reference

__all__ = ["sinkhorn"]


def sinkhorn(logits: torch.Tensor, num_rounds: int, eps: float) -> torch.Tensor:
    """The reference's result [..., S, S] of float32 ``logits``.

    One operator on CUDA and where a gradient is wanted, NumPy on the CPU, plain torch elsewhere and when compiled.
    """
    if logits.is_cuda or (torch.is_grad_enabled() and logits.requires_grad):
        return autograd.sinkhorn(logits, num_rounds, eps)
    if logits.device.type == "cpu" and logits.dtype == torch.float32 and not torch.compiler.is_compiling():
        return host.sinkhorn(logits, num_rounds, eps)
    return reference.sinkhorn(logits, num_rounds, eps)
