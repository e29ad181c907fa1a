"""Compressed rows in plain torch; every token pools a window, and those without an entry slot write nothing."""

import torch

from backends.deepseek_v4.cache_groups import AttentionKind
from backends.deepseek_v4.norms import rms_norm
from backends.deepseek_v4.ops.range_slots.reference import range_slots
from backends.deepseek_v4.pass_values import PassIndices
from backends.deepseek_v4.rope import Rope, apply_rope
from backends.deepseek_v4.rows.format import RowFormat
from backends.deepseek_v4.rows.plain import PlainRows
from specdec.api import GroupTable


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
    states = PlainRows(width=state.shape[-1], rows_per_page=rows_per_page, dtype=torch.float32)
    span = range(1 - kind.state_window, 1)
    slots_TW = range_slots(table, indices.reqs_T.long(), indices.positions_T.long(), span, rows_per_page)
    windows_TWF = states.read(state, slots_TW)
    values, scores = windows_TWF.chunk(2, dim=-1)
    if values.shape[-1] != head_dim:
        values, scores = own_halves(values, head_dim), own_halves(scores, head_dim)
    seen = (slots_TW >= 0).unsqueeze(-1)
    weights = torch.softmax(scores.masked_fill(~seen, torch.finfo(torch.float32).min), dim=-2)
    pooled_TD = rms_norm((weights * values).sum(-2), norm_weight, eps)
    closed_TD = apply_rope(pooled_TD, Rope(cos=angles_T2R[:, 0], sin=angles_T2R[:, 1]))
    rows.write(buffer, indices.entry_slots[kind].long(), closed_TD)


def own_halves(x_TWC: torch.Tensor, head_dim: int) -> torch.Tensor:
    """First channel half of the earlier block, second half of the later one: [T, W, head_dim]."""
    earlier, later = x_TWC.chunk(2, dim=-2)
    return torch.cat((earlier[..., :head_dim], later[..., head_dim:]), dim=-2)
