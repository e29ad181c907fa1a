"""Compressed rows in Triton: one program a token; most tokens close no row and leave at once."""

import torch
import triton
import triton.language as tl

from backends.deepseek_v4.cache_groups import AttentionKind
from backends.deepseek_v4.ops.device.norms import rms_factor
from backends.deepseek_v4.ops.device.pages import first_page, page_slots
from backends.deepseek_v4.ops.device.rotation import load_angles, rotate_row
from backends.deepseek_v4.ops.device.row_writer import page_stride, row_store, write_row
from backends.deepseek_v4.pass_values import PassIndices
from backends.deepseek_v4.rows.format import RowFormat
from specdec.api import GroupTable

# State rows that a program holds at a time.
CHUNK = 8
# Score of a row without weight; finite, so that a window of such rows only pools to 0.
_FLOOR = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def _pool(
    state_ptr, table_ptr, base_ptr, table_stride, num_columns, base_stride, req, position,
    WINDOW: tl.constexpr, STATE_PAGE: tl.constexpr, OVERLAPS: tl.constexpr, DIM: tl.constexpr,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Weighted mean [BLOCK] of the values of the window that ends at ``position``, by a softmax of their scores."""
    CHANNELS: tl.constexpr = 2 * DIM if OVERLAPS else DIM
    column = tl.arange(0, BLOCK)
    base = first_page(base_ptr, base_stride, req)
    top = tl.full([BLOCK], _FLOOR, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    pooled = tl.zeros([BLOCK], tl.float32)
    for start in range(0, WINDOW, CHUNK):
        row = start + tl.arange(0, CHUNK)
        slots = page_slots(table_ptr, table_stride, num_columns, req, base, position - WINDOW + 1 + row, STATE_PAGE)
        # Where windows overlap, the earlier block gives its first channels and the later one its last.
        half = (row // (WINDOW // 2)) * DIM if OVERLAPS else row * 0
        line_ptr = state_ptr + slots.to(tl.int64)[:, None] * (2 * CHANNELS) + half[:, None] + column[None, :]
        seen = (slots >= 0)[:, None] & (column < DIM)[None, :]
        scores = tl.load(line_ptr + CHANNELS, mask=seen, other=_FLOOR)
        values = tl.load(line_ptr, mask=seen, other=0.0)
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        weights = tl.exp(scores - new_top[None, :])
        kept = tl.exp(top - new_top)
        total = total * kept + tl.sum(weights, axis=0)
        pooled = pooled * kept + tl.sum(weights * values, axis=0)
        top = new_top
    return tl.where(column < DIM, tl.div_rn(pooled, total), 0.0)


@triton.jit(do_not_specialize_on_alignment=["entries_ptr", "positions_ptr", "reqs_ptr"])
def _compress(
    entries_ptr, positions_ptr, reqs_ptr, table_ptr, base_ptr, state_ptr, norm_ptr, angles_ptr, buffer_ptr,
    table_stride, num_columns, base_stride, stride, eps,
    WINDOW: tl.constexpr, STATE_PAGE: tl.constexpr, OVERLAPS: tl.constexpr, DIM: tl.constexpr, PAIRS: tl.constexpr,
    FORMAT: tl.constexpr, PAGE: tl.constexpr, ROPE: tl.constexpr, ROUNDS: tl.constexpr,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    entry = tl.load(entries_ptr + token)
    if entry >= 0:
        column = tl.arange(0, BLOCK)
        weight = tl.load(norm_ptr + column, mask=column < DIM, other=0.0)
        cos, sin = load_angles(angles_ptr + token.to(tl.int64) * (2 * PAIRS), DIM, PAIRS, BLOCK)
        req, position = tl.load(reqs_ptr + token), tl.load(positions_ptr + token)
        pooled = _pool(
            state_ptr, table_ptr, base_ptr, table_stride, num_columns, base_stride, req, position,
            WINDOW, STATE_PAGE, OVERLAPS, DIM, BLOCK, CHUNK,
        )  # fmt: skip
        closed = rotate_row(pooled * rms_factor(pooled, DIM, eps) * weight, cos, sin, DIM, PAIRS, BLOCK, False)
        write_row(closed, buffer_ptr, entry, stride, FORMAT, PAGE, DIM, ROPE, ROUNDS, BLOCK)


def compress(
    indices: PassIndices,
    kind: AttentionKind,
    table: GroupTable,
    rows_per_page: int,
    state: torch.Tensor,
    *,
    norm_weight: torch.Tensor,
    eps: float,
    angles_T2R: torch.Tensor,
    buffer: torch.Tensor,
    rows: RowFormat,
    head_dim: int,
) -> None:
    """See ``compress``."""
    store, entries_T, pages_BC = row_store(rows), indices.entry_slots[kind], table.pages_BC
    assert state.is_contiguous() and state.dtype == torch.float32, "state rows are contiguous float32"
    assert store.width == head_dim and angles_T2R.is_contiguous(), "angles of a token lie together"
    assert store.rope in (0, 2 * angles_T2R.shape[2]), "the format keeps the rotated values apart"
    if not len(entries_T) or not pages_BC.numel():
        return
    overlaps = kind is AttentionKind.CSA
    assert state.shape[-1] == (4 if overlaps else 2) * head_dim, "a state row holds values and scores"
    _compress[(len(entries_T),)](
        entries_T, indices.positions_T, indices.reqs_T, pages_BC, table.base_B, state, norm_weight, angles_T2R, buffer,
        pages_BC.stride(0), pages_BC.shape[1], 0 if table.base_B is None else table.base_B.stride(0),
        page_stride(buffer), eps,
        WINDOW=kind.state_window, STATE_PAGE=rows_per_page, OVERLAPS=overlaps, DIM=head_dim,
        PAIRS=angles_T2R.shape[2], FORMAT=store.format, PAGE=store.rows_per_page, ROPE=store.rope,
        ROUNDS=store.rounds, BLOCK=triton.next_power_of_2(head_dim), CHUNK=CHUNK,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
