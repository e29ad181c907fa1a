"""Hadamard rotation of indexer queries and keys; knows nothing of how they are stored afterwards."""

import torch


def hadamard(values_XD: torch.Tensor) -> torch.Tensor:
    """Orthonormal Walsh-Hadamard transform of the last dimension, fp32 [X, D]; its own inverse.

    The sign of entry (i, j) of the matrix is the parity of popcount(i & j) and the factor is ``D^-1/2``.
    D is a power of two. Computed as ``log2 D`` rounds of sums and differences, so a row's result does not
    depend on the rows around it.
    """
    width = values_XD.shape[-1]
    assert width > 0 and width & (width - 1) == 0, f"the Hadamard width must be a power of two, got {width}"
    values = values_XD.to(torch.float32)
    half = 1
    while half < width:
        pairs = values.unflatten(-1, (-1, 2, half))
        low, high = pairs.unbind(-2)
        values = torch.stack([low + high, low - high], dim=-2).flatten(-3)
        half *= 2
    return values * width**-0.5


def rotate(values_XD: torch.Tensor) -> torch.Tensor:
    """Round to bf16, rotate, round to bf16 again: what precedes every quantisation in the indexer."""
    return hadamard(values_XD.to(torch.bfloat16)).to(torch.bfloat16)
