"""Linear layers of a small head in float32 on a CPU, over weights that are read in half precision where that is exact.

A head drafts for a few rows at a time, after the target's pass has pushed its weights out of the processor's cache:
reading them is the cost. Results differ from those of the plain layers in the last bits, as with another batch size.
"""

import torch
import torch.nn.functional as F
from torch import nn

from backends.deepseek_v4.few_rows.products import product_of

MOST_ROWS = 16
"""With more rows the arithmetic costs more than reading the weight."""


class PackedLinear(nn.Module):
    """A linear layer with a packed copy of its weight for few rows."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self._product = product_of([linear.weight])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` [..., in] -> [..., out]."""
        rows_TI = x.reshape(-1, x.shape[-1]).contiguous()
        if not 0 < len(rows_TI) <= MOST_ROWS:
            return F.linear(x, self.weight, self.bias)
        out_TO = self._product(rows_TI)
        if self.bias is not None:
            out_TO = out_TO + self.bias
        return out_TO.view(*x.shape[:-1], -1)


def pack_linears(model: nn.Module) -> None:
    """Replace, in place, every ``nn.Linear`` below ``model`` of float32 on a CPU; not for training."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and child.weight.dtype == torch.float32 and not child.weight.is_cuda:
                setattr(parent, name, PackedLinear(child))
