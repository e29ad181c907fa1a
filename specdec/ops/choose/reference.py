"""choose in torch: softmax, then a race of exponentials."""

import torch

from specdec.noise import Salt, VocabularyNoise, row_keys

_LARGEST_LOGIT = 1e30


def choose(
    logits_BNV: torch.Tensor,
    positions_B: torch.Tensor,
    *,
    streams_B: torch.Tensor,
    inverse_temperature_B: torch.Tensor,
    greedy_B: torch.Tensor,
    noise: VocabularyNoise,
) -> torch.Tensor:
    """See ``specdec.ops.choose.choose``."""
    lowest = float("-inf")
    scores_BNV = logits_BNV.float().nan_to_num(nan=lowest, posinf=_LARGEST_LOGIT, neginf=lowest)
    scores_BNV = scores_BNV * inverse_temperature_B.view(-1, 1, 1)
    positions_BN = positions_B.unsqueeze(1) + torch.arange(logits_BNV.shape[1], device=positions_B.device)
    keys_BN = row_keys(streams_B.unsqueeze(1), positions_BN, Salt.TARGET)
    drawn_BN = noise.race(scores_BNV.softmax(dim=-1), keys_BN)
    return torch.where(greedy_B.unsqueeze(1), scores_BNV.argmax(dim=-1), drawn_BN)
