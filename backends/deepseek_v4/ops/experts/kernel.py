"""Experts in Triton: two products over blocks of pairs, weights decoded in registers and read once a block.

Activations and outputs have a row for each pair of token and place: row ``place * T + token``, the shared expert in
place k. Blocks of tokens of the shared expert come first, then the blocks of ``plan``.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from backends.deepseek_v4.ops.device.weights import FP8, fp8_scales, load_rows, multiply
from backends.deepseek_v4.ops.experts.plan import plan_blocks
from backends.deepseek_v4.ops.experts.tiles import ExpertTiles, choose_tiles, row_block
from backends.deepseek_v4.ops.experts.values import ExpertWeights
from backends.deepseek_v4.ops.linear.kernel import FORMAT_CODES, KernelWeight, is_exact
from backends.deepseek_v4.ops.linear.tiles import Tile
from backends.deepseek_v4.ops.route.values import Routing


@triton.jit
def _block_rows(
    ids_ptr, table_ptr, pairs_ptr, num_tokens, num_shared, num_blocks,
    K: tl.constexpr, ROWS: tl.constexpr, SORTED: tl.constexpr,
):  # fmt: skip
    """Of this block: whether shared, its expert, its number of rows; of its rows: token, place, inside."""
    block = tl.program_id(1)
    row_N = tl.arange(0, ROWS)
    is_shared = block < num_shared
    routed = tl.maximum(block - num_shared, 0)
    if SORTED:
        expert = tl.load(table_ptr + routed, mask=block >= num_shared, other=0)
        first = tl.load(table_ptr + num_blocks + routed, mask=block >= num_shared, other=0)
        count = tl.load(table_ptr + 2 * num_blocks + routed, mask=block >= num_shared, other=0)
        pair_N = tl.load(pairs_ptr + first + row_N, mask=row_N < count, other=0)
    else:
        # One token: every pair is a block of its own.
        expert = tl.load(ids_ptr + routed, mask=block >= num_shared, other=0)
        count = 1
        pair_N = routed + row_N * 0
    token_N = tl.where(is_shared, block * ROWS + row_N, pair_N // K)
    place_N = tl.where(is_shared, K, pair_N % K)
    count = tl.where(is_shared, tl.minimum(num_tokens - block * ROWS, ROWS), count)
    return is_shared, expert, count, token_N, place_N, row_N < count


@triton.jit(do_not_specialize=["num_tokens", "num_shared", "num_blocks"])
def _first(
    x_ptr, h_ptr, weights_ptr, ids_ptr, table_ptr, pairs_ptr,
    w1_ptr, w3_ptr, scales1_ptr, scales3_ptr, shared1_ptr, shared3_ptr, shared_scales1_ptr, shared_scales3_ptr,
    num_tokens, num_shared, num_blocks, num_inputs, width, x_stride,
    values_stride, scales_stride, expert_values, expert_scales, limit,
    K: tl.constexpr, ROWS: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_K: tl.constexpr, STEPS: tl.constexpr,
    FORMAT: tl.constexpr, EXACT: tl.constexpr, WHOLE: tl.constexpr, SORTED: tl.constexpr,
):  # fmt: skip
    """``h = silu(w1 x) * (w3 x) * routing weight`` of BLOCK_O outputs of a block of rows."""
    is_shared, expert, count, token_N, place_N, inside_N = _block_rows(
        ids_ptr, table_ptr, pairs_ptr, num_tokens, num_shared, num_blocks, K, ROWS, SORTED
    )
    if count > 0:
        output_M = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
        row_M = tl.minimum(output_M, width - 1)
        skipped = expert.to(tl.int64)
        gate_ptr = tl.where(is_shared, shared1_ptr, w1_ptr + skipped * expert_values)
        up_ptr = tl.where(is_shared, shared3_ptr, w3_ptr + skipped * expert_values)
        gate_scales_ptr = tl.where(is_shared, shared_scales1_ptr, scales1_ptr + skipped * expert_scales)
        up_scales_ptr = tl.where(is_shared, shared_scales3_ptr, scales3_ptr + skipped * expert_scales)
        gate = tl.zeros((BLOCK_O, ROWS), dtype=tl.float32)
        up = tl.zeros((BLOCK_O, ROWS), dtype=tl.float32)
        gate_scale = tl.full((BLOCK_O,), 1.0, dtype=tl.float32)
        up_scale = tl.full((BLOCK_O,), 1.0, dtype=tl.float32)
        if FORMAT == FP8:
            gate_scale = fp8_scales(gate_scales_ptr, scales_stride, row_M, 0, num_inputs, BLOCK_K)
            up_scale = fp8_scales(up_scales_ptr, scales_stride, row_M, 0, num_inputs, BLOCK_K)
        for step in range(STEPS):
            x_KN = load_rows(x_ptr, token_N * x_stride, inside_N, step, num_inputs, BLOCK_K, WHOLE)
            next_gate_scale, next_up_scale = gate_scale, up_scale
            if FORMAT == FP8:
                next_gate_scale = fp8_scales(gate_scales_ptr, scales_stride, row_M, step + 1, num_inputs, BLOCK_K)
                next_up_scale = fp8_scales(up_scales_ptr, scales_stride, row_M, step + 1, num_inputs, BLOCK_K)
            if EXACT:
                x_KN = x_KN.to(tl.float32)
            gate = multiply(
                gate, gate_ptr, values_stride, gate_scales_ptr, scales_stride, row_M, gate_scale, x_KN, step,
                num_inputs, FORMAT, EXACT, BLOCK_K, WHOLE,
            )  # fmt: skip
            up = multiply(
                up, up_ptr, values_stride, up_scales_ptr, scales_stride, row_M, up_scale, x_KN, step,
                num_inputs, FORMAT, EXACT, BLOCK_K, WHOLE,
            )  # fmt: skip
            gate_scale, up_scale = next_gate_scale, next_up_scale
        if limit > 0:
            gate = tl.minimum(gate, limit)
            up = tl.minimum(tl.maximum(up, -limit), limit)
        weight_N = tl.load(weights_ptr + token_N * K + place_N, mask=inside_N & (place_N < K), other=1.0)
        h = gate / (1.0 + tl.exp(-gate)) * up * weight_N[None, :]
        out = h_ptr + (place_N * num_tokens + token_N)[None, :].to(tl.int64) * width + output_M[:, None]
        tl.store(out, h.to(h_ptr.dtype.element_ty), mask=inside_N[None, :] & (output_M < width)[:, None])


@triton.jit(do_not_specialize=["num_tokens", "num_shared", "num_blocks"])
def _second(
    h_ptr, out_ptr, ids_ptr, table_ptr, pairs_ptr, w2_ptr, scales_ptr, shared_ptr, shared_scales_ptr,
    num_tokens, num_shared, num_blocks, num_inputs, num_outputs,
    values_stride, scales_stride, expert_values, expert_scales,
    K: tl.constexpr, ROWS: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_K: tl.constexpr, STEPS: tl.constexpr,
    FORMAT: tl.constexpr, EXACT: tl.constexpr, WHOLE: tl.constexpr, SORTED: tl.constexpr,
):  # fmt: skip
    """``w2 h`` of BLOCK_O outputs of a block of rows."""
    is_shared, expert, count, token_N, place_N, inside_N = _block_rows(
        ids_ptr, table_ptr, pairs_ptr, num_tokens, num_shared, num_blocks, K, ROWS, SORTED
    )
    if count > 0:
        output_M = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
        row_M = tl.minimum(output_M, num_outputs - 1)
        skipped = expert.to(tl.int64)
        down_ptr = tl.where(is_shared, shared_ptr, w2_ptr + skipped * expert_values)
        down_scales_ptr = tl.where(is_shared, shared_scales_ptr, scales_ptr + skipped * expert_scales)
        row_N = place_N * num_tokens + token_N
        acc = tl.zeros((BLOCK_O, ROWS), dtype=tl.float32)
        scale = tl.full((BLOCK_O,), 1.0, dtype=tl.float32)
        if FORMAT == FP8:
            scale = fp8_scales(down_scales_ptr, scales_stride, row_M, 0, num_inputs, BLOCK_K)
        for step in range(STEPS):
            h_KN = load_rows(h_ptr, row_N * num_inputs, inside_N, step, num_inputs, BLOCK_K, WHOLE)
            next_scale = scale
            if FORMAT == FP8:
                next_scale = fp8_scales(down_scales_ptr, scales_stride, row_M, step + 1, num_inputs, BLOCK_K)
            if EXACT:
                h_KN = h_KN.to(tl.float32)
            acc = multiply(
                acc, down_ptr, values_stride, down_scales_ptr, scales_stride, row_M, scale, h_KN, step,
                num_inputs, FORMAT, EXACT, BLOCK_K, WHOLE,
            )  # fmt: skip
            scale = next_scale
        out = out_ptr + row_N[None, :].to(tl.int64) * num_outputs + output_M[:, None]
        tl.store(out, acc, mask=inside_N[None, :] & (output_M < num_outputs)[:, None])


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rows:
    """The rows of a call and their blocks; ``table`` and ``pairs`` are read only if there are several tokens."""

    routing: Routing
    block: int
    num_routed_blocks: int
    table: torch.Tensor
    pairs: torch.Tensor

    @classmethod
    def of(cls, routing: Routing, num_experts: int) -> "_Rows":
        num_tokens, k = routing.ids_Tk.shape
        block = row_block(num_tokens, k, num_experts)
        if num_tokens == 1:
            return cls(routing=routing, block=block, num_routed_blocks=k, table=routing.ids_Tk, pairs=routing.ids_Tk)
        blocks = plan_blocks(routing, num_experts, block)
        return cls(
            routing=routing,
            block=block,
            num_routed_blocks=blocks.table_3B.shape[1],
            table=blocks.table_3B,
            pairs=blocks.pairs_N,
        )

    @property
    def num_tokens(self) -> int:
        return self.routing.ids_Tk.shape[0]

    @property
    def k(self) -> int:
        return self.routing.ids_Tk.shape[1]

    @property
    def num_shared_blocks(self) -> int:
        return triton.cdiv(self.num_tokens, self.block)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Launch:
    """Experts of one launch, all stored alike; a kind that has no blocks in it is not read."""

    routed: ExpertWeights
    shared: ExpertWeights
    num_shared: int
    num_routed: int


def _launches(routed: ExpertWeights, shared: ExpertWeights, rows: _Rows) -> tuple[_Launch, ...]:
    """One launch where both kinds of experts are stored alike, else one for each."""
    num_shared, num_routed = rows.num_shared_blocks, rows.num_routed_blocks
    if (routed.w1.format, routed.w1.values.dtype) == (shared.w1.format, shared.w1.values.dtype):
        return (_Launch(routed=routed, shared=shared, num_shared=num_shared, num_routed=num_routed),)
    return (
        _Launch(routed=shared, shared=shared, num_shared=num_shared, num_routed=0),
        _Launch(routed=routed, shared=routed, num_shared=0, num_routed=num_routed),
    )


def experts(
    x_TD: torch.Tensor,
    routing: Routing,
    routed: ExpertWeights,
    shared: ExpertWeights,
    *,
    limit: float,
    tiles: ExpertTiles | None = None,
) -> torch.Tensor:
    """See the package; ``tiles`` replaces those of the table."""
    assert x_TD.stride(-1) == 1, "rows of x must be contiguous"
    assert routing.ids_Tk.is_contiguous() and routing.weights_Tk.is_contiguous(), "a routing must be contiguous"
    hidden, width = routed.w1.num_inputs, routed.w1.num_outputs
    rows = _Rows.of(routing, routed.w1.values.shape[0])
    h = torch.empty((rows.k + 1, rows.num_tokens, width), device=x_TD.device, dtype=x_TD.dtype)
    out = torch.empty((rows.k + 1, rows.num_tokens, hidden), device=x_TD.device, dtype=torch.float32)
    launches = [
        (launch, tiles or choose_tiles(launch.routed.w1.format, rows.block, exact=is_exact(x_TD, launch.routed.w1)))
        for launch in _launches(routed, shared, rows)
    ]
    for launch, each in launches:
        _run_first(x_TD, h, launch, rows, each.first, limit)
    for launch, each in launches:
        _run_second(h, out, launch, rows, each.second)
    return out


def _run_first(x_TD: torch.Tensor, h: torch.Tensor, launch: _Launch, rows: _Rows, tile: Tile, limit: float) -> None:
    """Write the activations ``h`` [k + 1, T, I] of a launch's experts."""
    w1, w3 = KernelWeight.of(launch.routed.w1), KernelWeight.of(launch.routed.w3)
    s1, s3 = KernelWeight.of(launch.shared.w1), KernelWeight.of(launch.shared.w3)
    hidden, width = launch.routed.w1.num_inputs, launch.routed.w1.num_outputs
    _first[(triton.cdiv(width, tile.block_outputs), launch.num_shared + launch.num_routed)](
        x_TD, h, rows.routing.weights_Tk, rows.routing.ids_Tk, rows.table, rows.pairs,
        w1.values, w3.values, w1.scales, w3.scales, s1.values, s3.values, s1.scales, s3.scales,
        rows.num_tokens, launch.num_shared, rows.num_routed_blocks, hidden, width, x_TD.stride(0),
        w1.values_stride, w1.scales_stride, w1.values.stride(0), w1.scales.stride(0), float(limit),
        K=rows.k, ROWS=rows.block, BLOCK_O=tile.block_outputs, BLOCK_K=tile.block_inputs,
        STEPS=triton.cdiv(hidden, tile.block_inputs), FORMAT=FORMAT_CODES[launch.routed.w1.format],
        EXACT=is_exact(x_TD, launch.routed.w1), WHOLE=hidden % tile.block_inputs == 0, SORTED=rows.num_tokens > 1,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def _run_second(h: torch.Tensor, out: torch.Tensor, launch: _Launch, rows: _Rows, tile: Tile) -> None:
    """Write the outputs [k + 1, T, D] of a launch's experts."""
    w2, s2 = KernelWeight.of(launch.routed.w2), KernelWeight.of(launch.shared.w2)
    hidden, width = launch.routed.w1.num_inputs, launch.routed.w1.num_outputs
    _second[(triton.cdiv(hidden, tile.block_outputs), launch.num_shared + launch.num_routed)](
        h, out, rows.routing.ids_Tk, rows.table, rows.pairs, w2.values, w2.scales, s2.values, s2.scales,
        rows.num_tokens, launch.num_shared, rows.num_routed_blocks, width, hidden,
        w2.values_stride, w2.scales_stride, w2.values.stride(0), w2.scales.stride(0),
        K=rows.k, ROWS=rows.block, BLOCK_O=tile.block_outputs, BLOCK_K=tile.block_inputs,
        STEPS=triton.cdiv(width, tile.block_inputs), FORMAT=FORMAT_CODES[launch.routed.w1.format],
        EXACT=is_exact(h, launch.routed.w2), WHOLE=width % tile.block_inputs == 0, SORTED=rows.num_tokens > 1,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
