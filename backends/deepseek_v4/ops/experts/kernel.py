"""Experts in Triton: two products over blocks of pairs, weights decoded in registers and read once a block.

Activations and outputs have a row for each pair of token and place: row ``place * T + token``, the shared expert in
place k. Blocks of tokens of the shared expert come first, then the blocks of ``plan``.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from backends.deepseek_v4.ops.device.weights import FP8_BLOCK, multiply_rows
from backends.deepseek_v4.ops.experts.plan import plan_blocks
from backends.deepseek_v4.ops.experts.tiles import ExpertTiles, choose_tiles, row_block
from backends.deepseek_v4.ops.experts.values import ExpertWeights
from backends.deepseek_v4.ops.linear.kernel import KernelWeight, format_code, is_exact
from backends.deepseek_v4.ops.linear.tiles import Tile
from backends.deepseek_v4.ops.route.values import Routing
from backends.deepseek_v4.stored_weight import StoredWeight
from specdec.ops.early import EarlyKernel, begin


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


@triton.jit
def _gate_and_up(
    gate_ptr, up_ptr, gate_scales_ptr, up_scales_ptr, values_stride, scales_stride, x_ptr, x_offset_N, inside_N,
    num_inputs, width,
    HALF: tl.constexpr, FORMAT: tl.constexpr, EXACT: tl.constexpr, BLOCK_K: tl.constexpr, STEPS: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """HALF rows of the gate matrix above as many of the up matrix, times rows of x."""
    first = tl.program_id(0) * HALF
    place_M = tl.arange(0, 2 * HALF)
    row_M = tl.minimum(first + place_M % HALF, width - 1)
    is_gate_M = place_M < HALF
    shared_row = (first // FP8_BLOCK) * scales_stride
    return multiply_rows(
        tl.where(is_gate_M, gate_ptr, up_ptr) + row_M * values_stride,
        tl.where(is_gate_M, gate_scales_ptr, up_scales_ptr) + row_M * scales_stride,
        gate_scales_ptr + shared_row, up_scales_ptr + shared_row, x_ptr, x_offset_N, inside_N, 0, num_inputs,
        FORMAT, EXACT, BLOCK_K, STEPS, WHOLE, True,
    )  # fmt: skip


@EarlyKernel
@triton.jit(do_not_specialize=["num_tokens", "num_shared", "num_blocks"])
def _first(
    x_ptr, h_ptr, weights_ptr, ids_ptr, table_ptr, pairs_ptr,
    w1_ptr, w3_ptr, scales1_ptr, scales3_ptr, shared1_ptr, shared3_ptr, shared_scales1_ptr, shared_scales3_ptr,
    num_tokens, num_shared, num_blocks, num_inputs, width, x_stride,
    values_stride, scales_stride, expert_values, expert_scales, shared_values_stride, shared_scales_stride, limit,
    K: tl.constexpr, ROWS: tl.constexpr, SORTED: tl.constexpr, BLOCK_O: tl.constexpr, EXACT: tl.constexpr,
    ALIKE: tl.constexpr, FORMAT: tl.constexpr, BLOCK_K: tl.constexpr, STEPS: tl.constexpr, WHOLE: tl.constexpr,
    SHARED_FORMAT: tl.constexpr, SHARED_BLOCK_K: tl.constexpr, SHARED_STEPS: tl.constexpr, SHARED_WHOLE: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """``h = silu(w1 x) * (w3 x) * routing weight`` of BLOCK_O / 2 outputs of a block of rows."""
    begin(EARLY)
    is_shared, expert, count, token_N, place_N, inside_N = _block_rows(
        ids_ptr, table_ptr, pairs_ptr, num_tokens, num_shared, num_blocks, K, ROWS, SORTED
    )
    if count > 0:
        HALF: tl.constexpr = BLOCK_O // 2
        values, scales = expert.to(tl.int64) * expert_values, expert.to(tl.int64) * expert_scales
        gate_ptr, up_ptr = w1_ptr + values, w3_ptr + values
        gate_scales_ptr, up_scales_ptr = scales1_ptr + scales, scales3_ptr + scales
        x_offset_N = token_N * x_stride
        if ALIKE:
            both = _gate_and_up(
                tl.where(is_shared, shared1_ptr, gate_ptr), tl.where(is_shared, shared3_ptr, up_ptr),
                tl.where(is_shared, shared_scales1_ptr, gate_scales_ptr),
                tl.where(is_shared, shared_scales3_ptr, up_scales_ptr),
                values_stride, scales_stride, x_ptr, x_offset_N, inside_N, num_inputs, width,
                HALF, FORMAT, EXACT, BLOCK_K, STEPS, WHOLE,
            )  # fmt: skip
        elif is_shared:
            both = _gate_and_up(
                shared1_ptr, shared3_ptr, shared_scales1_ptr, shared_scales3_ptr, shared_values_stride,
                shared_scales_stride, x_ptr, x_offset_N, inside_N, num_inputs, width,
                HALF, SHARED_FORMAT, EXACT, SHARED_BLOCK_K, SHARED_STEPS, SHARED_WHOLE,
            )  # fmt: skip
        else:
            both = _gate_and_up(
                gate_ptr, up_ptr, gate_scales_ptr, up_scales_ptr, values_stride, scales_stride,
                x_ptr, x_offset_N, inside_N, num_inputs, width,
                HALF, FORMAT, EXACT, BLOCK_K, STEPS, WHOLE,
            )  # fmt: skip
        gate, up = both.reshape(2, HALF, ROWS).permute(1, 2, 0).split()
        if limit > 0:
            gate = tl.minimum(gate, limit)
            up = tl.minimum(tl.maximum(up, -limit), limit)
        weight_N = tl.load(weights_ptr + token_N * K + place_N, mask=inside_N & (place_N < K), other=1.0)
        h = gate / (1.0 + tl.exp(-gate)) * up * weight_N[None, :]
        output_H = tl.program_id(0) * HALF + tl.arange(0, HALF)
        out = h_ptr + (place_N * num_tokens + token_N)[None, :].to(tl.int64) * width + output_H[:, None]
        tl.store(out, h.to(h_ptr.dtype.element_ty), mask=inside_N[None, :] & (output_H < width)[:, None])


@triton.jit
def _down(
    values_ptr, scales_ptr, values_stride, scales_stride, h_ptr, h_offset_N, inside_N, num_inputs, num_outputs,
    BLOCK_O: tl.constexpr, FORMAT: tl.constexpr, EXACT: tl.constexpr, BLOCK_K: tl.constexpr, STEPS: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """BLOCK_O rows of the down matrix times rows of h."""
    first = tl.program_id(0) * BLOCK_O
    row_M = tl.minimum(first + tl.arange(0, BLOCK_O), num_outputs - 1)
    shared_scales_ptr = scales_ptr + (first // FP8_BLOCK) * scales_stride
    return multiply_rows(
        values_ptr + row_M * values_stride, scales_ptr + row_M * scales_stride, shared_scales_ptr, shared_scales_ptr,
        h_ptr, h_offset_N, inside_N, 0, num_inputs, FORMAT, EXACT, BLOCK_K, STEPS, WHOLE, False,
    )  # fmt: skip


@EarlyKernel
@triton.jit(do_not_specialize=["num_tokens", "num_shared", "num_blocks"])
def _second(
    h_ptr, out_ptr, ids_ptr, table_ptr, pairs_ptr, w2_ptr, scales_ptr, shared_ptr, shared_scales_ptr,
    num_tokens, num_shared, num_blocks, num_inputs, num_outputs,
    values_stride, scales_stride, expert_values, expert_scales, shared_values_stride, shared_scales_stride,
    K: tl.constexpr, ROWS: tl.constexpr, SORTED: tl.constexpr, BLOCK_O: tl.constexpr, EXACT: tl.constexpr,
    ALIKE: tl.constexpr, FORMAT: tl.constexpr, BLOCK_K: tl.constexpr, STEPS: tl.constexpr, WHOLE: tl.constexpr,
    SHARED_FORMAT: tl.constexpr, SHARED_BLOCK_K: tl.constexpr, SHARED_STEPS: tl.constexpr, SHARED_WHOLE: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """``w2 h`` of BLOCK_O outputs of a block of rows."""
    begin(EARLY)
    is_shared, expert, count, token_N, place_N, inside_N = _block_rows(
        ids_ptr, table_ptr, pairs_ptr, num_tokens, num_shared, num_blocks, K, ROWS, SORTED
    )
    if count > 0:
        down_ptr = w2_ptr + expert.to(tl.int64) * expert_values
        down_scales_ptr = scales_ptr + expert.to(tl.int64) * expert_scales
        row_N = place_N * num_tokens + token_N
        if ALIKE:
            acc = _down(
                tl.where(is_shared, shared_ptr, down_ptr), tl.where(is_shared, shared_scales_ptr, down_scales_ptr),
                values_stride, scales_stride, h_ptr, row_N * num_inputs, inside_N, num_inputs, num_outputs,
                BLOCK_O, FORMAT, EXACT, BLOCK_K, STEPS, WHOLE,
            )  # fmt: skip
        elif is_shared:
            acc = _down(
                shared_ptr, shared_scales_ptr, shared_values_stride, shared_scales_stride,
                h_ptr, row_N * num_inputs, inside_N, num_inputs, num_outputs,
                BLOCK_O, SHARED_FORMAT, EXACT, SHARED_BLOCK_K, SHARED_STEPS, SHARED_WHOLE,
            )  # fmt: skip
        else:
            acc = _down(
                down_ptr, down_scales_ptr, values_stride, scales_stride,
                h_ptr, row_N * num_inputs, inside_N, num_inputs, num_outputs,
                BLOCK_O, FORMAT, EXACT, BLOCK_K, STEPS, WHOLE,
            )  # fmt: skip
        output_M = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
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
class _Product:
    """How a product goes through the inputs of routed and shared experts, which share a launch.

    alike  both kinds are stored in one way: their programs differ in pointers only
    """

    tile: Tile
    shared_tile: Tile
    exact: bool
    alike: bool

    @classmethod
    def of(
        cls, routed: StoredWeight, shared: StoredWeight, x: torch.Tensor, rows: _Rows, tile: Tile | None, which: str
    ) -> "_Product":
        """``tile`` replaces that of the table for routed experts."""
        exact = is_exact(x, routed) or is_exact(x, shared)
        assert not (exact and (routed.packed or shared.packed)), "packed weights are multiplied by bf16 rows only"
        alike = (format_code(routed), routed.values.dtype) == (format_code(shared), shared.values.dtype)
        tables = [choose_tiles(each.format, rows.block, exact=exact) for each in (routed, shared)]
        routed_tile, shared_tile = (each.first if which == "first" else each.second for each in tables)
        routed_tile = tile or routed_tile
        shared_tile = routed_tile if alike else shared_tile
        assert routed_tile.block_outputs == shared_tile.block_outputs, "tiles of both kinds are equally high"
        return cls(tile=routed_tile, shared_tile=shared_tile, exact=exact, alike=alike)

    def constants(self, routed: StoredWeight, shared: StoredWeight, rows: _Rows) -> dict[str, int | bool]:
        """The kernel's constants and launch options."""
        inputs, each, shared_each = routed.num_inputs, self.tile.block_inputs, self.shared_tile.block_inputs
        return {
            "K": rows.k,
            "ROWS": rows.block,
            "SORTED": rows.num_tokens > 1,
            "BLOCK_O": self.tile.block_outputs,
            "EXACT": self.exact,
            "ALIKE": self.alike,
            "FORMAT": format_code(routed),
            "BLOCK_K": each,
            "STEPS": triton.cdiv(inputs, each),
            "WHOLE": inputs % each == 0,
            "SHARED_FORMAT": format_code(shared),
            "SHARED_BLOCK_K": shared_each,
            "SHARED_STEPS": triton.cdiv(inputs, shared_each),
            "SHARED_WHOLE": inputs % shared_each == 0,
            "num_warps": self.tile.warps,
            "num_stages": self.tile.stages,
        }


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
    first = _Product.of(routed.w1, shared.w1, x_TD, rows, None if tiles is None else tiles.first, "first")
    second = _Product.of(routed.w2, shared.w2, h, rows, None if tiles is None else tiles.second, "second")
    _run_first(x_TD, h, routed, shared, rows, first, limit)
    _run_second(h, out, routed, shared, rows, second)
    return out


def _run_first(
    x_TD: torch.Tensor, h: torch.Tensor, routed: ExpertWeights, shared: ExpertWeights, rows: _Rows,
    product: _Product, limit: float,
) -> None:  # fmt: skip
    """Write the activations ``h`` [k + 1, T, I]."""
    w1, w3, s1, s3 = (KernelWeight.of(each) for each in (routed.w1, routed.w3, shared.w1, shared.w3))
    hidden, width = routed.w1.num_inputs, routed.w1.num_outputs
    _first[(triton.cdiv(width, product.tile.block_outputs // 2), rows.num_shared_blocks + rows.num_routed_blocks)](
        x_TD, h, rows.routing.weights_Tk, rows.routing.ids_Tk, rows.table, rows.pairs,
        w1.values, w3.values, w1.scales, w3.scales, s1.values, s3.values, s1.scales, s3.scales,
        rows.num_tokens, rows.num_shared_blocks, rows.num_routed_blocks, hidden, width, x_TD.stride(0),
        w1.values_stride, w1.scales_stride, w1.values.stride(0), w1.scales.stride(0),
        s1.values_stride, s1.scales_stride, float(limit),
        **product.constants(routed.w1, shared.w1, rows),
    )  # fmt: skip


def _run_second(
    h: torch.Tensor, out: torch.Tensor, routed: ExpertWeights, shared: ExpertWeights, rows: _Rows,
    product: _Product,
) -> None:  # fmt: skip
    """Write the outputs [k + 1, T, D]."""
    w2, s2 = KernelWeight.of(routed.w2), KernelWeight.of(shared.w2)
    hidden, width = routed.w1.num_inputs, routed.w1.num_outputs
    _second[(triton.cdiv(hidden, product.tile.block_outputs), rows.num_shared_blocks + rows.num_routed_blocks)](
        h, out, rows.routing.ids_Tk, rows.table, rows.pairs, w2.values, w2.scales, s2.values, s2.scales,
        rows.num_tokens, rows.num_shared_blocks, rows.num_routed_blocks, width, hidden,
        w2.values_stride, w2.scales_stride, w2.values.stride(0), w2.scales.stride(0),
        s2.values_stride, s2.scales_stride,
        **product.constants(routed.w2, shared.w2, rows),
    )  # fmt: skip
