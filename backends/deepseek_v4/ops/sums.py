"""Sum of partial results in a fixed order, as kernels add them."""

import torch


def sum_in_order(parts_PTX: torch.Tensor) -> torch.Tensor:
    """Sum over the first axis in float32, one part after the other."""
    total_TX = parts_PTX[0].float()
    for part_TX in parts_PTX[1:]:
        total_TX = total_TX + part_TX.float()
    return total_TX
