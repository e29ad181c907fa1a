"""Products of few rows with a stored weight in Triton: every byte of the weight is read once for up to 64 rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from backends.deepseek_v4.ops.device.weights import FP8_BLOCK, multiply_rows
from backends.deepseek_v4.ops.linear.tiles import (
    SPLIT_UNIT,
    Tile,
    choose_joint_splits,
    choose_splits,
    choose_tile,
    row_block,
)
from backends.deepseek_v4.stored_weight import StoredWeight, WeightFormat
from specdec.ops.early import EarlyKernel, begin

FP8_BLOCK_ROWS = FP8_BLOCK.value
FORMAT_CODES = {
    (WeightFormat.PLAIN, False): 0,
    (WeightFormat.FP8, False): 1,
    (WeightFormat.FP4, False): 2,
    (WeightFormat.FP8, True): 3,
    (WeightFormat.FP4, True): 4,
}


# One compilation for every number of rows.
@EarlyKernel
@triton.jit(do_not_specialize=["num_rows", "part_stride"])
def _few_rows(
    x_ptr, values_ptr, scales_ptr, out_ptr,
    num_rows, group_outputs, num_inputs, x_stride, values_stride, scales_stride, part_stride, out_stride,
    ROWS: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_K: tl.constexpr, STEPS: tl.constexpr,
    FORMAT: tl.constexpr, EXACT: tl.constexpr, WHOLE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Program (block of outputs, part of the inputs, block of rows)."""
    begin(EARLY)
    blocks_each = tl.cdiv(group_outputs, BLOCK_O)
    group, block = tl.program_id(0) // blocks_each, tl.program_id(0) % blocks_each
    split = tl.program_id(1)
    first_row = group * group_outputs + block * BLOCK_O
    output_M = block * BLOCK_O + tl.arange(0, BLOCK_O)
    # Rows beyond the last one repeat it and are not stored: cheaper than a mask.
    row_M = group * group_outputs + tl.minimum(output_M, group_outputs - 1)
    token_N = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    inside_N = token_N < num_rows
    shared_scales_ptr = scales_ptr + (first_row // FP8_BLOCK) * scales_stride
    acc = multiply_rows(
        values_ptr + row_M * values_stride, scales_ptr + row_M * scales_stride, shared_scales_ptr, shared_scales_ptr,
        x_ptr, token_N * x_stride + group * num_inputs, inside_N, split * STEPS, num_inputs,
        FORMAT, EXACT, BLOCK_K, STEPS, WHOLE, False,
    )  # fmt: skip
    column_M = group * group_outputs + output_M
    line_N = tl.cast(split, tl.int64) * part_stride + token_N.to(tl.int64) * out_stride
    out = out_ptr + line_N[None, :] + column_M[:, None]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=inside_N[None, :] & (output_M < group_outputs)[:, None])


def is_exact(x: torch.Tensor, weight: StoredWeight) -> bool:
    """Whether the product is one of fp32 values: of fp32 rows or weights, or of quantised ones that are not packed."""
    is_ordered = weight.format is not WeightFormat.PLAIN and not weight.packed
    return x.dtype == torch.float32 or weight.values.dtype == torch.float32 or is_ordered


def format_code(weight: StoredWeight) -> int:
    """The constant that stands for a weight's storage in kernels."""
    return FORMAT_CODES[weight.format, weight.packed]


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelWeight:
    """A stored weight as kernels take it: bytes where its elements have 8 bits, words of 4 bytes if it is packed.

    Strides count elements between rows. Without scales, ``scales`` repeats the values and is never read.
    """

    values: torch.Tensor
    values_stride: int
    scales: torch.Tensor
    scales_stride: int

    @classmethod
    def of(cls, weight: StoredWeight) -> "KernelWeight":
        assert weight.values.is_contiguous(), "a stored weight must be contiguous"
        values = weight.values.view(torch.int32) if weight.packed else _as_bytes(weight.values)
        scales = values if weight.scales is None else _as_bytes(weight.scales)
        return cls(values=values, values_stride=values.stride(-2), scales=scales, scales_stride=scales.stride(-2))


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor


def linear(
    x_TX: torch.Tensor, weight: StoredWeight, *, groups: int, dtype: torch.dtype, splits: int | None
) -> torch.Tensor:
    """See the package."""
    if splits is None:
        splits = choose_splits(weight.num_outputs, weight.num_inputs)
    parts = empty_parts(x_TX, weight.num_outputs, weight.num_inputs, splits, dtype)
    run(x_TX, weight, parts, _tile(x_TX, weight, parts.shape[0]), groups=groups)
    return parts


def joint_linear(x_TI: torch.Tensor, weights: Sequence[StoredWeight]) -> torch.Tensor:
    """See the package."""
    outputs, num_inputs = tuple(weight.num_outputs for weight in weights), weights[0].num_inputs
    parts = empty_parts(x_TI, sum(outputs), num_inputs, choose_joint_splits(outputs, num_inputs), torch.float32)
    for weight, columns_PTO in zip(weights, parts.split(outputs, dim=-1), strict=True):
        run(x_TI, weight, columns_PTO, _tile(x_TI, weight, parts.shape[0]), groups=1)
    return parts


def empty_parts(x_TX: torch.Tensor, num_outputs: int, num_inputs: int, splits: int, dtype: torch.dtype) -> torch.Tensor:
    """Room for parts [P, T, O]; P is at most ``splits``, as no part is empty."""
    num_parts = triton.cdiv(num_inputs, _inputs_each(num_inputs, splits))
    return torch.empty((num_parts, x_TX.shape[0], num_outputs), device=x_TX.device, dtype=dtype)


def _inputs_each(num_inputs: int, splits: int) -> int:
    return triton.cdiv(triton.cdiv(num_inputs, SPLIT_UNIT), splits) * SPLIT_UNIT


def _tile(x_TX: torch.Tensor, weight: StoredWeight, num_parts: int) -> Tile:
    exact = is_exact(x_TX, weight)
    return choose_tile(weight.format, row_block(x_TX.shape[0]), weight.num_outputs, num_parts, exact=exact)


def _share_scales(groups: int, group_outputs: int, block_outputs: int) -> bool:
    """Whether the outputs of every tile lie within 128 rows that have the same scales."""
    ends = [group_outputs * (group + 1) for group in range(groups)]
    tiles = [
        (first, min(first + block_outputs, end))
        for end in ends
        for first in range(end - group_outputs, end, block_outputs)
    ]
    return all(first // FP8_BLOCK_ROWS == (end - 1) // FP8_BLOCK_ROWS for first, end in tiles)


def run(x_TX: torch.Tensor, weight: StoredWeight, parts_PTO: torch.Tensor, tile: Tile, *, groups: int) -> None:
    """Write parts, which may be columns of a wider tensor, with a given tile."""
    assert x_TX.stride(-1) == 1, "rows of x must be contiguous"
    assert parts_PTO.stride(-1) == 1, "columns of parts must be contiguous"
    exact = is_exact(x_TX, weight)
    assert not (exact and weight.packed), "packed weights are multiplied by bf16 rows only"
    num_rows, num_inputs, num_parts = x_TX.shape[0], weight.num_inputs, parts_PTO.shape[0]
    inputs_each = _inputs_each(num_inputs, num_parts)
    stored = KernelWeight.of(weight)
    rows, group_outputs = row_block(num_rows), weight.num_outputs // groups
    if weight.format is WeightFormat.FP8:
        assert _share_scales(groups, group_outputs, tile.block_outputs), "a tile's outputs lie in one block of scales"
    grid = (groups * triton.cdiv(group_outputs, tile.block_outputs), num_parts, triton.cdiv(num_rows, rows))
    _few_rows[grid](
        x_TX, stored.values, stored.scales, parts_PTO,
        num_rows, group_outputs, num_inputs, x_TX.stride(0), stored.values_stride, stored.scales_stride,
        parts_PTO.stride(0), parts_PTO.stride(1),
        ROWS=rows, BLOCK_O=tile.block_outputs, BLOCK_K=tile.block_inputs, STEPS=inputs_each // tile.block_inputs,
        FORMAT=format_code(weight), EXACT=exact, WHOLE=num_parts * inputs_each == num_inputs,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
