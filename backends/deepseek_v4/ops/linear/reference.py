"""Products with a stored weight in plain torch."""

import torch

from backends.deepseek_v4.stored_weight import StoredWeight


def linear(x_TX: torch.Tensor, weight: StoredWeight, *, groups: int, dtype: torch.dtype) -> torch.Tensor:
    """[1, T, O]: fp32 products and sums of the values that x and the weight stand for, rounded once to ``dtype``."""
    return _grouped(x_TX.float(), weight.dense().float(), groups).to(dtype).unsqueeze(0)


def _grouped(x_TX: torch.Tensor, dense_OI: torch.Tensor, groups: int) -> torch.Tensor:
    if groups == 1:
        return torch.nn.functional.linear(x_TX, dense_OI)
    x_GTI = x_TX.unflatten(-1, (groups, -1)).transpose(0, 1)
    dense_GIO = dense_OI.unflatten(0, (groups, -1)).transpose(1, 2)
    return torch.bmm(x_GTI, dense_GIO).transpose(0, 1).flatten(1)
