"""Compressed rows in plain torch; every token pools a window, and those without an entry slot write nothing."""

import torch

from backends.deepseek_v4.cache_groups import AttentionKind
from backends.deepseek_v4.norms import rms_norm
from backends.deepseek_v4.ops.compress.values import EntryCache
from backends.deepseek_v4.ops.range_slots.reference import range_slots
from backends.deepseek_v4.pass_values import PassIndices
from backends.deepseek_v4.rope import Rope, apply_rope
from backends.deepseek_v4.rows.plain import PlainRows


def compress(
    indices: PassIndices, kind: AttentionKind, cache: EntryCache, *, eps: float, angles_T2R: torch.Tensor
) -> None:
    """Rows of one cache."""
    states = PlainRows(width=cache.state.shape[-1], rows_per_page=cache.rows_per_page, dtype=torch.float32)
    span, head_dim = range(1 - kind.state_window, 1), cache.rows.width
    slots_TW = range_slots(cache.table, indices.reqs_T.long(), indices.positions_T.long(), span, cache.rows_per_page)
    values, scores = states.read(cache.state, slots_TW).chunk(2, dim=-1)
    if values.shape[-1] != head_dim:
        values, scores = own_halves(values, head_dim), own_halves(scores, head_dim)
    seen = (slots_TW >= 0).unsqueeze(-1)
    weights = torch.softmax(scores.masked_fill(~seen, torch.finfo(torch.float32).min), dim=-2)
    pooled_TD = rms_norm((weights * values).sum(-2), cache.norm_weight, eps)
    closed_TD = apply_rope(pooled_TD, Rope(cos=angles_T2R[:, 0], sin=angles_T2R[:, 1]))
    cache.rows.write(cache.buffer, indices.entry_slots[kind].long(), closed_TD)


def own_halves(x_TWC: torch.Tensor, head_dim: int) -> torch.Tensor:
    """First channel half of the earlier block, second half of the later one: [T, W, head_dim]."""
    earlier, later = x_TWC.chunk(2, dim=-2)
    return torch.cat((earlier[..., :head_dim], later[..., head_dim:]), dim=-2)
