"""Partial results that are added up on the way in: strides of parts that keep wide loads, and their sum."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

# Elements that a stride is known to be a multiple of, so that loads of 16 bytes are possible.
ALIGNED_ELEMENTS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class PartStrides:
    """Strides of parts [P, T, X] in units of ``unit`` elements.

    A stride of parts may grow with the number of tokens and be a multiple of 16 for some numbers only. The unit
    depends on the width alone, so that the code of a kernel, and with it the order of its sums, does not change with
    the number of tokens.
    """

    part: int
    token: int
    unit: int


def part_strides(parts_PTX: torch.Tensor) -> PartStrides:
    """Strides of ``parts_PTX``, whose last dimension is contiguous."""
    assert parts_PTX.stride(-1) == 1, "values of a part lie together"
    part, token = parts_PTX.stride(0), parts_PTX.stride(1)
    unit = ALIGNED_ELEMENTS if part % ALIGNED_ELEMENTS == 0 and token % ALIGNED_ELEMENTS == 0 else 1
    return PartStrides(part=part // unit, token=token // unit, unit=unit)


@triton.jit
def sum_parts(
    parts_ptr, token, columns, inside, part_stride, token_stride, UNIT: tl.constexpr, NUM_PARTS: tl.constexpr
):
    """Sum over the parts, in order, of a token's values in ``columns``; fp32, 0 where not ``inside``."""
    line_ptr = parts_ptr + token.to(tl.int64) * token_stride * UNIT
    total = tl.load(line_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    for part in tl.static_range(1, NUM_PARTS):
        start = tl.cast(part, tl.int64) * part_stride * UNIT
        total += tl.load(line_ptr + start + columns, mask=inside, other=0.0).to(tl.float32)
    return total
