"""Products of few rows with a stored weight in Triton: every byte of the weight is read once for up to 64 rows."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from backends.deepseek_v4.ops.device.weights import FP8, fp8_scales, load_rows, multiply
from backends.deepseek_v4.ops.linear.tiles import SPLIT_UNIT, Tile, choose_splits, choose_tile, row_block
from backends.deepseek_v4.stored_weight import StoredWeight, WeightFormat

FORMAT_CODES = {WeightFormat.PLAIN: 0, WeightFormat.FP8: 1, WeightFormat.FP4: 2}


# One compilation for every number of rows.
@triton.jit(do_not_specialize=["num_rows"])
def _few_rows(
    x_ptr, values_ptr, scales_ptr, out_ptr,
    num_rows, num_outputs, group_outputs, num_inputs, x_stride, values_stride, scales_stride,
    ROWS: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_K: tl.constexpr, STEPS: tl.constexpr,
    FORMAT: tl.constexpr, EXACT: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Program (block of outputs, part of the inputs, block of rows)."""
    blocks_each = tl.cdiv(group_outputs, BLOCK_O)
    group, block = tl.program_id(0) // blocks_each, tl.program_id(0) % blocks_each
    split = tl.program_id(1)
    output_M = block * BLOCK_O + tl.arange(0, BLOCK_O)
    # Rows beyond the last one repeat it and are not stored: cheaper than a mask.
    row_M = group * group_outputs + tl.minimum(output_M, group_outputs - 1)
    token_N = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    inside_N = token_N < num_rows
    x_offset_N = token_N * x_stride + group * num_inputs
    acc = tl.zeros((BLOCK_O, ROWS), dtype=tl.float32)
    scale_M = tl.full((BLOCK_O,), 1.0, dtype=tl.float32)
    if FORMAT == FP8:
        scale_M = fp8_scales(scales_ptr, scales_stride, row_M, split * STEPS, num_inputs, BLOCK_K)
    for each in range(STEPS):
        step = split * STEPS + each
        x_KN = load_rows(x_ptr, x_offset_N, inside_N, step, num_inputs, BLOCK_K, WHOLE)
        next_scale_M = scale_M
        if FORMAT == FP8:
            # One step ahead: the loop does not wait for it.
            next_scale_M = fp8_scales(scales_ptr, scales_stride, row_M, step + 1, num_inputs, BLOCK_K)
        if EXACT:
            x_KN = x_KN.to(tl.float32)
        acc = multiply(
            acc, values_ptr, values_stride, scales_ptr, scales_stride, row_M, scale_M, x_KN, step, num_inputs,
            FORMAT, EXACT, BLOCK_K, WHOLE,
        )  # fmt: skip
        scale_M = next_scale_M
    column_M = group * group_outputs + output_M
    out = out_ptr + (split * num_rows + token_N)[None, :].to(tl.int64) * num_outputs + column_M[:, None]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=inside_N[None, :] & (output_M < group_outputs)[:, None])


def is_exact(x: torch.Tensor, weight: StoredWeight) -> bool:
    """Whether the product is one of fp32 values."""
    return x.dtype == torch.float32 or weight.values.dtype == torch.float32


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelWeight:
    """A stored weight as kernels take it: bytes where its elements have 8 bits; strides in elements between rows.

    Without scales, ``scales`` repeats the values and is never read.
    """

    values: torch.Tensor
    values_stride: int
    scales: torch.Tensor
    scales_stride: int

    @classmethod
    def of(cls, weight: StoredWeight) -> "KernelWeight":
        assert weight.values.is_contiguous(), "a stored weight must be contiguous"
        values = _as_bytes(weight.values)
        scales = values if weight.scales is None else _as_bytes(weight.scales)
        return cls(values=values, values_stride=values.stride(-2), scales=scales, scales_stride=scales.stride(-2))


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor


def linear(
    x_TX: torch.Tensor, weight: StoredWeight, *, groups: int, dtype: torch.dtype, splits: int | None
) -> torch.Tensor:
    """See the package."""
    exact = is_exact(x_TX, weight)
    tile = choose_tile(weight.format, row_block(x_TX.shape[0]), exact=exact)
    if splits is None:
        splits = choose_splits(weight.num_outputs, weight.num_inputs)
    return run(x_TX, weight, tile, splits, groups=groups, dtype=dtype)


def run(
    x_TX: torch.Tensor, weight: StoredWeight, tile: Tile, splits: int, *, groups: int, dtype: torch.dtype
) -> torch.Tensor:
    """Parts [P, T, O] with a given tile; P is at most ``splits``, as no part is empty."""
    assert x_TX.stride(-1) == 1, "rows of x must be contiguous"
    num_rows, num_outputs, num_inputs = x_TX.shape[0], weight.num_outputs, weight.num_inputs
    inputs_each = triton.cdiv(triton.cdiv(num_inputs, SPLIT_UNIT), splits) * SPLIT_UNIT
    num_parts = triton.cdiv(num_inputs, inputs_each)
    parts = torch.empty((num_parts, num_rows, num_outputs), device=x_TX.device, dtype=dtype)
    stored = KernelWeight.of(weight)
    rows, group_outputs = row_block(num_rows), num_outputs // groups
    grid = (groups * triton.cdiv(group_outputs, tile.block_outputs), num_parts, triton.cdiv(num_rows, rows))
    _few_rows[grid](
        x_TX, stored.values, stored.scales, parts,
        num_rows, num_outputs, group_outputs, num_inputs, x_TX.stride(0), stored.values_stride, stored.scales_stride,
        ROWS=rows, BLOCK_O=tile.block_outputs, BLOCK_K=tile.block_inputs, STEPS=inputs_each // tile.block_inputs,
        FORMAT=FORMAT_CODES[weight.format], EXACT=is_exact(x_TX, weight), WHOLE=num_parts * inputs_each == num_inputs,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return parts
