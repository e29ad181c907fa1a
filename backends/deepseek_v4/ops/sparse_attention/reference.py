"""Sparse attention in plain torch: gathers the rows that each token attends, then ``attention.attend``."""

import torch

from backends.deepseek_v4.attention import attend
from backends.deepseek_v4.ops.sparse_attention.values import KeyList
from backends.deepseek_v4.rope import Rope, apply_rope

# Bounds the gathered rows.
TOKENS_AT_ONCE = 64


def sparse_attention(
    q_THD: torch.Tensor,
    window: KeyList,
    extra: KeyList | None,
    sinks_H: torch.Tensor,
    *,
    scale: float,
    angles_T2R: torch.Tensor,
) -> torch.Tensor:
    """See the operator."""
    lists = [window] if extra is None else [window, extra]
    out_THD = torch.empty_like(q_THD, memory_format=torch.contiguous_format)
    for first in range(0, q_THD.shape[0], TOKENS_AT_ONCE):
        some = slice(first, first + TOKENS_AT_ONCE)
        gathered = [_gather(keys, some, q_THD.dtype) for keys in lists]
        keys_TND = torch.cat([rows for rows, _ in gathered], dim=1)
        valid_TN = torch.cat([valid for _, valid in gathered], dim=1)
        out_T1HD = attend(q_THD[some].unsqueeze(1), keys_TND, valid_TN.unsqueeze(1), sinks_H, scale)
        cos, sin = angles_T2R[some].unbind(1)
        out_THD[some] = apply_rope(out_T1HD.squeeze(1), Rope(cos=cos, sin=sin).per_head(), inverse=True)
    return out_THD.flatten(1)


def _gather(keys: KeyList, tokens: slice, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows [T, K, D] and which of them count, bool [T, K]."""
    slots_TK, lens_T = keys.slots.slots_TK[tokens], keys.slots.lens_T[tokens]
    place_K = torch.arange(slots_TK.shape[1], device=slots_TK.device)
    valid_TK = (slots_TK >= 0) & (place_K < lens_T.unsqueeze(1))
    rows_TKD = keys.rows.read(keys.buffer, torch.where(valid_TK, slots_TK, -1))
    return rows_TKD.to(dtype), valid_TK
