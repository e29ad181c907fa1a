"""linear: which implementation."""

from collections.abc import Sequence

import torch

from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.linear import reference
from backends.deepseek_v4.stored_weight import StoredWeight

__all__ = ["joint_linear", "linear"]


def linear(
    x_TX: torch.Tensor,
    weight: StoredWeight,
    *,
    groups: int = 1,
    dtype: torch.dtype = torch.float32,
    splits: int | None = None,
    kernels: Kernels,
) -> torch.Tensor:
    """Product of rows with a stored weight as partial sums [P, T, O] of ``dtype``; the sum over P is the result.

    x_TX    fp32 or bf16 [T, groups * I], last dim contiguous
    weight  [O, I]; output columns of group g, ``O / groups`` of them, see columns ``g * I`` to ``(g + 1) * I`` of x
    dtype   of the parts: fp32, or bf16 with ``splits=1``
    splits  parts P; None: chosen from O and I alone

    bf16 x is multiplied in bf16 with fp32 accumulation, fp32 x and fp32 weights in fp32. Quantised weights should be
    packed for bf16 x (``StoredWeight.pack``): those that are not are multiplied in fp32, slowly; fp32 x takes no packed
    ones. The bits of a row depend on nothing but the row, however many share the pass: the library's product, which is
    faster for hundreds of rows, would make a prompt's cache depend on what it was computed with.
    """
    num_rows, width = x_TX.shape
    assert width == groups * weight.num_inputs, f"x has {width} columns, weight wants {groups * weight.num_inputs}"
    assert weight.num_outputs % groups == 0, f"{weight.num_outputs} outputs do not split into {groups} groups"
    assert splits == 1 or dtype == torch.float32, "parts of a split product are fp32"
    assert not (weight.packed and x_TX.dtype == torch.float32), "packed weights are multiplied by bf16 rows only"
    if kernels is Kernels.REFERENCE or num_rows == 0:
        return reference.linear(x_TX, weight, groups=groups, dtype=dtype)
    from backends.deepseek_v4.ops.linear import kernel

    return kernel.linear(x_TX, weight, groups=groups, dtype=dtype, splits=splits)


def joint_linear(x_TI: torch.Tensor, weights: Sequence[StoredWeight], *, kernels: Kernels) -> torch.Tensor:
    """Parts fp32 [P, T, O] as of one weight with the rows of all ``weights`` in order, which may be stored differently.

    See ``linear``; one launch for each weight.
    """
    if len(weights) == 1:
        return linear(x_TI, weights[0], kernels=kernels)
    if kernels is Kernels.REFERENCE or x_TI.shape[0] == 0:
        return torch.cat([linear(x_TI, weight, kernels=kernels) for weight in weights], dim=-1)
    from backends.deepseek_v4.ops.linear import kernel

    return kernel.joint_linear(x_TI, weights)
