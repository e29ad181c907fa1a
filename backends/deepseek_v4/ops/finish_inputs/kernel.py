"""Query latent and cache rows in Triton: one launch, a program for each token and block of columns."""

import torch
import triton
import triton.language as tl

from backends.deepseek_v4.cache_groups import INDEX_STATE_GROUP, SWA_GROUP, state_group
from backends.deepseek_v4.ops.device.norms import rms_factor, round_to
from backends.deepseek_v4.ops.device.parts import part_strides, sum_parts
from backends.deepseek_v4.ops.device.rotation import load_angles, rotate_row
from backends.deepseek_v4.ops.device.row_writer import page_stride, row_store, write_row
from backends.deepseek_v4.ops.finish_inputs.values import LayerInputs
from backends.deepseek_v4.pass_values import PassIndices
from backends.deepseek_v4.pool import CachePool
from specdec.ops.early import EarlyKernel, begin

# Sections of a token; a layer without a compressor has the first two, one without an indexer the first three.
LATENT = tl.constexpr(0)
KEY = tl.constexpr(1)
STATE = tl.constexpr(2)
INDEX_STATE = tl.constexpr(3)
NUM_SECTIONS = 5


@triton.jit
def _latent(
    parts_ptr, norm_ptr, out_ptr, token, part_stride, token_stride, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, UNIT: tl.constexpr, NUM_PARTS: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    weight = tl.load(norm_ptr + column, mask=inside, other=0.0)
    row = round_to(sum_parts(parts_ptr, token, column, inside, part_stride, token_stride, UNIT, NUM_PARTS), out_ptr)
    normed = row * rms_factor(row, WIDTH, eps) * weight
    tl.store(out_ptr + token.to(tl.int64) * WIDTH + column, normed.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _key(
    parts_ptr, norm_ptr, angles_ptr, slots_ptr, buffer_ptr, like_ptr, token, part_stride, token_stride, stride, eps,
    FIRST: tl.constexpr, DIM: tl.constexpr, PAIRS: tl.constexpr, BLOCK: tl.constexpr,
    FORMAT: tl.constexpr, PAGE: tl.constexpr, ROPE: tl.constexpr, UNIT: tl.constexpr, NUM_PARTS: tl.constexpr,
):  # fmt: skip
    """The token's key: rounded to the type of ``like_ptr`` before the norm, after it and after the rotation."""
    slot = tl.load(slots_ptr + token)
    column = tl.arange(0, BLOCK)
    inside = column < DIM
    weight = tl.load(norm_ptr + column, mask=inside, other=0.0)
    cos, sin = load_angles(angles_ptr + token.to(tl.int64) * (2 * PAIRS), DIM, PAIRS, BLOCK)
    row = sum_parts(parts_ptr, token, FIRST + column, inside, part_stride, token_stride, UNIT, NUM_PARTS)
    row = round_to(row, like_ptr)
    row = round_to(row * rms_factor(row, DIM, eps) * weight, like_ptr)
    row = round_to(rotate_row(row, cos, sin, DIM, PAIRS, BLOCK, False), like_ptr)
    if slot >= 0:
        write_row(row, buffer_ptr, slot, stride, FORMAT, PAGE, DIM, ROPE, 0, BLOCK)


@triton.jit
def _state(
    parts_ptr, ape_ptr, slots_ptr, positions_ptr, buffer_ptr, token, part_stride, token_stride,
    FIRST: tl.constexpr, CHANNELS: tl.constexpr, RATIO: tl.constexpr, BLOCK: tl.constexpr,
    UNIT: tl.constexpr, NUM_PARTS: tl.constexpr,
):  # fmt: skip
    """The token's state row ``[values | scores + ape]``."""
    slot = tl.load(slots_ptr + token)
    column = tl.arange(0, BLOCK)
    inside = column < 2 * CHANNELS
    row = sum_parts(parts_ptr, token, FIRST + column, inside, part_stride, token_stride, UNIT, NUM_PARTS)
    # Padding has position -1, a slot of -1, and needs no more than a valid address.
    phase = tl.maximum(tl.load(positions_ptr + token), 0) % RATIO
    scores = (column >= CHANNELS) & inside
    row += tl.load(ape_ptr + phase * CHANNELS + (column - CHANNELS), mask=scores, other=0.0)
    if slot >= 0:
        tl.store(buffer_ptr + slot.to(tl.int64) * (2 * CHANNELS) + column, row, mask=inside)


@EarlyKernel
@triton.jit(
    do_not_specialize=["part_stride", "token_stride"],
    do_not_specialize_on_alignment=["positions_ptr", "swa_slots_ptr", "state_slots_ptr", "index_slots_ptr"],
)
def _finish(
    parts_ptr, angles_ptr, positions_ptr, latent_ptr, weights_ptr,
    q_norm_ptr, kv_norm_ptr, swa_ptr, swa_slots_ptr,
    state_ptr, state_slots_ptr, ape_ptr, index_state_ptr, index_slots_ptr, index_ape_ptr,
    part_stride, token_stride, swa_stride, eps, index_scale,
    LORA: tl.constexpr, DIM: tl.constexpr, PAIRS: tl.constexpr,
    CHANNELS: tl.constexpr, RATIO: tl.constexpr, INDEX_CHANNELS: tl.constexpr, INDEX_RATIO: tl.constexpr,
    HEADS: tl.constexpr, FORMAT: tl.constexpr, PAGE: tl.constexpr, ROPE: tl.constexpr,
    LORA_BLOCK: tl.constexpr, DIM_BLOCK: tl.constexpr, STATE_BLOCK: tl.constexpr, INDEX_BLOCK: tl.constexpr,
    HEADS_BLOCK: tl.constexpr, UNIT: tl.constexpr, NUM_PARTS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    token, section = tl.program_id(0), tl.program_id(1)
    FIRST_INDEX: tl.constexpr = LORA + DIM + 2 * CHANNELS
    if section == LATENT:
        _latent(
            parts_ptr, q_norm_ptr, latent_ptr, token, part_stride, token_stride, eps, LORA, LORA_BLOCK, UNIT, NUM_PARTS
        )
    elif section == KEY:
        _key(
            parts_ptr, kv_norm_ptr, angles_ptr, swa_slots_ptr, swa_ptr, latent_ptr, token, part_stride, token_stride,
            swa_stride, eps, LORA, DIM, PAIRS, DIM_BLOCK, FORMAT, PAGE, ROPE, UNIT, NUM_PARTS,
        )  # fmt: skip
    elif section == STATE:
        if CHANNELS > 0:
            _state(
                parts_ptr, ape_ptr, state_slots_ptr, positions_ptr, state_ptr, token, part_stride, token_stride,
                LORA + DIM, CHANNELS, RATIO, STATE_BLOCK, UNIT, NUM_PARTS,
            )  # fmt: skip
    elif section == INDEX_STATE:
        if INDEX_CHANNELS > 0:
            _state(
                parts_ptr, index_ape_ptr, index_slots_ptr, positions_ptr, index_state_ptr, token, part_stride,
                token_stride, FIRST_INDEX, INDEX_CHANNELS, INDEX_RATIO, INDEX_BLOCK, UNIT, NUM_PARTS,
            )  # fmt: skip
    else:
        if HEADS > 0:
            head = tl.arange(0, HEADS_BLOCK)
            inside = head < HEADS
            column = FIRST_INDEX + 2 * INDEX_CHANNELS + head
            row = sum_parts(parts_ptr, token, column, inside, part_stride, token_stride, UNIT, NUM_PARTS)
            scaled = round_to(row, latent_ptr) * index_scale
            tl.store(weights_ptr + token.to(tl.int64) * HEADS + head, scaled, mask=inside)


def finish_inputs(
    parts_PTO: torch.Tensor,
    indices: PassIndices,
    angles_T2R: torch.Tensor,
    inputs: LayerInputs,
    pool: CachePool,
    layer: int,
    *,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """See ``finish_inputs``."""
    num_tokens, device = parts_PTO.shape[1], parts_PTO.device
    latent_TL = torch.empty(num_tokens, inputs.q_lora, dtype=dtype, device=device)
    weights_TJ = torch.empty(num_tokens, inputs.index_heads, dtype=torch.float32, device=device)
    if num_tokens:
        _launch(parts_PTO, indices, angles_T2R, inputs, pool, layer, latent_TL, weights_TJ)
    return latent_TL, None if inputs.index is None else weights_TJ


def _launch(
    parts_PTO: torch.Tensor,
    indices: PassIndices,
    angles_T2R: torch.Tensor,
    inputs: LayerInputs,
    pool: CachePool,
    layer: int,
    latent_TL: torch.Tensor,
    weights_TJ: torch.Tensor,
) -> None:
    kind, slots, swa = pool.kind(layer), indices.write_slots, pool.swa(layer)
    store, strides = row_store(pool.swa_rows), part_strides(parts_PTO)
    assert angles_T2R.is_contiguous(), "angles of a token lie together"
    assert store.rope in (0, 2 * angles_T2R.shape[2]), "the format keeps the rotated values apart"
    compressor, index = inputs.compressor, inputs.index
    # A cache that the layer lacks is never touched; some pointer has to stand in its place.
    state = (swa, slots[SWA_GROUP], inputs.kv_norm)
    if compressor is not None:
        state = (pool.state(layer), slots[state_group(kind)], compressor.ape)
    index_state = state
    if index is not None:
        index_state = (pool.index_state(layer), slots[INDEX_STATE_GROUP], index.ape)
    channels, index_channels = (0 if each is None else each.channels for each in (compressor, index))
    blocks = [triton.next_power_of_2(max(1, width)) for width in inputs.widths]
    num_sections = NUM_SECTIONS if index is not None else 2 if compressor is None else 3
    _finish[(latent_TL.shape[0], num_sections)](
        parts_PTO, angles_T2R, indices.positions_T, latent_TL, weights_TJ if index is not None else latent_TL,
        inputs.q_norm, inputs.kv_norm, swa, slots[SWA_GROUP], *state, *index_state,
        strides.part, strides.token, page_stride(swa), inputs.eps, inputs.index_scale,
        LORA=inputs.q_lora, DIM=inputs.head_dim, PAIRS=angles_T2R.shape[2],
        CHANNELS=channels, RATIO=1 if compressor is None else compressor.ratio,
        INDEX_CHANNELS=index_channels, INDEX_RATIO=1 if index is None else index.ratio,
        HEADS=inputs.index_heads, FORMAT=store.format, PAGE=store.rows_per_page, ROPE=store.rope,
        LORA_BLOCK=blocks[0], DIM_BLOCK=blocks[1], STATE_BLOCK=blocks[2], INDEX_BLOCK=blocks[3],
        HEADS_BLOCK=blocks[4], UNIT=strides.unit, NUM_PARTS=parts_PTO.shape[0],
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
