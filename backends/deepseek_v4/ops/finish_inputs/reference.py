"""Query latent and cache rows of a layer's tokens in plain torch."""

import torch

from backends.deepseek_v4.cache_groups import INDEX_STATE_GROUP, SWA_GROUP, state_group
from backends.deepseek_v4.norms import rms_norm
from backends.deepseek_v4.ops.finish_inputs.values import CompressorInputs, LayerInputs
from backends.deepseek_v4.ops.sums import sum_in_order
from backends.deepseek_v4.pass_values import PassIndices
from backends.deepseek_v4.pool import CachePool
from backends.deepseek_v4.rope import Rope, apply_rope


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
    latent, key, states, index_states, weights = sum_in_order(parts_PTO).split(inputs.widths, dim=-1)
    rope = Rope(cos=angles_T2R[:, 0], sin=angles_T2R[:, 1])
    keys_TD = apply_rope(rms_norm(key.to(dtype), inputs.kv_norm, inputs.eps), rope)
    slots = indices.write_slots
    pool.swa_rows.write(pool.swa(layer), slots[SWA_GROUP].long(), keys_TD)
    if inputs.compressor is not None:
        rows_TD = _state_rows(states, indices.positions_T, inputs.compressor)
        group = state_group(pool.kind(layer))
        pool.state_rows(layer).write(pool.state(layer), slots[group].long(), rows_TD)
    if inputs.index is not None:
        rows_TD = _state_rows(index_states, indices.positions_T, inputs.index)
        pool.index_state_rows(layer).write(pool.index_state(layer), slots[INDEX_STATE_GROUP].long(), rows_TD)
    latent_TL = rms_norm(latent.to(dtype), inputs.q_norm, inputs.eps)
    return latent_TL, None if inputs.index is None else weights.to(dtype).float() * inputs.index_scale


def _state_rows(columns_TC: torch.Tensor, positions_T: torch.Tensor, inputs: CompressorInputs) -> torch.Tensor:
    """State rows ``[values | scores + ape]``."""
    values, scores = columns_TC.split(inputs.channels, dim=-1)
    return torch.cat((values, scores + inputs.ape[positions_T.long() % inputs.ratio]), dim=-1)
