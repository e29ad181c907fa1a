"""Compressed rows in Triton: one program a token and cache; most tokens close no row and leave at once."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from backends.deepseek_v4.cache_groups import AttentionKind
from backends.deepseek_v4.ops.compress.values import EntryCache
from backends.deepseek_v4.ops.device.norms import rms_factor
from backends.deepseek_v4.ops.device.pages import first_page, page_slots
from backends.deepseek_v4.ops.device.rotation import load_angles, rotate_row
from backends.deepseek_v4.ops.device.row_writer import page_stride, row_store, write_row
from backends.deepseek_v4.pass_values import PassIndices
from specdec.ops.early import EarlyKernel, wait_for_earlier

# Most state rows that a program holds at a time.
CHUNK = 16
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


@triton.jit
def _close(
    entry, position, req, record_ptr, cache, eps,
    FORM: tl.constexpr, WINDOW: tl.constexpr, OVERLAPS: tl.constexpr, PAIRS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write one row; ``cache`` and FORM are those of ``_cache_arguments``."""
    table_ptr, base_ptr, state_ptr, norm_ptr, buffer_ptr, table_stride, num_columns, base_stride, page_stride = cache
    DIM: tl.constexpr = FORM[0]
    STATE_PAGE: tl.constexpr = FORM[1]
    FORMAT: tl.constexpr = FORM[2]
    PAGE: tl.constexpr = FORM[3]
    ROPE: tl.constexpr = FORM[4]
    ROUNDS: tl.constexpr = FORM[5]
    BLOCK: tl.constexpr = FORM[6]
    column = tl.arange(0, BLOCK)
    weight = tl.load(norm_ptr + column, mask=column < DIM, other=0.0)
    cos, sin = load_angles(record_ptr, DIM, PAIRS, BLOCK)
    pooled = _pool(
        state_ptr, table_ptr, base_ptr, table_stride, num_columns, base_stride, req, position,
        WINDOW, STATE_PAGE, OVERLAPS, DIM, BLOCK, CHUNK,
    )  # fmt: skip
    closed = rotate_row(pooled * rms_factor(pooled, DIM, eps) * weight, cos, sin, DIM, PAIRS, BLOCK, False)
    write_row(closed, buffer_ptr, entry, page_stride, FORMAT, PAGE, DIM, ROPE, ROUNDS, BLOCK)


@EarlyKernel
@triton.jit(do_not_specialize_on_alignment=["entries_ptr", "positions_ptr", "reqs_ptr"])
def _compress(
    entries_ptr, positions_ptr, reqs_ptr, angles_ptr, first, second, eps,
    FIRST: tl.constexpr, SECOND: tl.constexpr,
    WINDOW: tl.constexpr, OVERLAPS: tl.constexpr, PAIRS: tl.constexpr, CHUNK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    wait_for_earlier(EARLY)
    token = tl.program_id(0)
    entry = tl.load(entries_ptr + token)
    if entry >= 0:
        req, position = tl.load(reqs_ptr + token), tl.load(positions_ptr + token)
        record_ptr = angles_ptr + token.to(tl.int64) * (2 * PAIRS)
        if tl.program_id(1) == 0:
            _close(entry, position, req, record_ptr, first, eps, FIRST, WINDOW, OVERLAPS, PAIRS, CHUNK)
        else:
            _close(entry, position, req, record_ptr, second, eps, SECOND, WINDOW, OVERLAPS, PAIRS, CHUNK)


def _cache_arguments(cache: EntryCache) -> tuple[tuple, tuple]:
    """What ``_close`` is told of a cache: values, and constants."""
    store, pages_BC, base_B = row_store(cache.rows), cache.table.pages_BC, cache.table.base_B
    values = (
        pages_BC, base_B, cache.state, cache.norm_weight, cache.buffer,
        pages_BC.stride(0), pages_BC.shape[1], 0 if base_B is None else base_B.stride(0), page_stride(cache.buffer),
    )  # fmt: skip
    block = triton.next_power_of_2(store.width)
    return values, (
        store.width, cache.rows_per_page, store.format, store.rows_per_page, store.rope, store.rounds, block
    )  # fmt: skip


def compress(
    indices: PassIndices,
    kind: AttentionKind,
    caches: Sequence[EntryCache],
    *,
    eps: float,
    angles_T2R: torch.Tensor,
) -> None:
    """See ``compress``."""
    entries_T, overlaps = indices.entry_slots[kind], kind is AttentionKind.CSA
    assert angles_T2R.is_contiguous(), "angles of a token lie together"
    for cache in caches:
        _check(cache, overlaps, angles_T2R)
    # A group without pages has nothing to pool and no row to write.
    filled = [cache for cache in caches if cache.table.pages_BC.numel()]
    if not len(entries_T) or not filled:
        return
    (first, first_form), (second, second_form) = _cache_arguments(filled[0]), _cache_arguments(filled[-1])
    _compress[(len(entries_T), len(filled))](
        entries_T, indices.positions_T, indices.reqs_T, angles_T2R, first, second, eps,
        FIRST=first_form, SECOND=second_form, WINDOW=kind.state_window, OVERLAPS=overlaps,
        PAIRS=angles_T2R.shape[2], CHUNK=min(CHUNK, kind.state_window), num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip


def _check(cache: EntryCache, overlaps: bool, angles_T2R: torch.Tensor) -> None:
    store, state = row_store(cache.rows), cache.state
    assert state.is_contiguous() and state.dtype == torch.float32, "state rows are contiguous float32"
    assert store.rope in (0, 2 * angles_T2R.shape[2]), "the format keeps the rotated values apart"
    assert state.shape[-1] == (4 if overlaps else 2) * store.width, "a state row holds values and scores"
