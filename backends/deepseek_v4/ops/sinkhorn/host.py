"""sinkhorn for a few matrices on the CPU, without gradients: the rounds run in NumPy with the batch innermost.

Some hundred tiny operations a call make dispatch the whole cost; NumPy's is a fraction of torch's, and sums over
leading axes vectorise over the batch. A matrix's result does not depend on the others in the batch.
"""

import numpy as np
import torch


def sinkhorn(logits: torch.Tensor, num_rounds: int, eps: float) -> torch.Tensor:
    """The reference's result up to rounding; ``logits`` float32 [..., S, S] on the CPU."""
    size = logits.shape[-1]
    soft = torch.softmax(logits.detach(), dim=-1)
    out = np.ascontiguousarray(soft.reshape(-1, size, size).numpy().transpose(1, 2, 0))
    floor = np.float32(eps)
    out += floor
    for step in range(2 * num_rounds - 1):
        total = np.add.reduce(out, axis=step % 2, keepdims=True)
        total += floor
        out /= total
    return torch.from_numpy(np.ascontiguousarray(out.transpose(2, 0, 1))).view(logits.shape)
