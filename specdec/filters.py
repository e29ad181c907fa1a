"""Filters top-k, top-p and min-p on log-weights; knows nothing of requests or noise."""

from collections.abc import Sequence

import torch

from specdec.sampling_params import SamplingParams


class Filters:
    """The filters of a batch, one entry per request, in the order top-k, top-p (of what is left), min-p.

    Ties at the top-k and top-p edges keep the lowest ids. The most probable token is always kept.
    """

    def __init__(self, params: Sequence[SamplingParams], *, vocab_size: int, device: torch.device) -> None:
        on = [p.has_filters for p in params]
        top_k = [p.top_k if use and p.top_k > 0 else vocab_size for p, use in zip(params, on, strict=True)]
        top_p = [p.top_p if use else 1.0 for p, use in zip(params, on, strict=True)]
        min_p = [p.min_p if use else 0.0 for p, use in zip(params, on, strict=True)]
        self._sorts = any(k < vocab_size for k in top_k) or any(p < 1 for p in top_p)
        self._top_k_B11 = torch.tensor(top_k, device=device).view(-1, 1, 1)
        self._top_p_B11 = torch.tensor(top_p, dtype=torch.float64, device=device).view(-1, 1, 1)
        self._floor_B11 = torch.tensor(min_p, dtype=torch.float32, device=device).log_().view(-1, 1, 1)

    def apply(self, scores_BNV: torch.Tensor) -> torch.Tensor:
        """float32 log-weights [B, N, V] with -inf where a token is filtered out."""
        dropped_BNV = scores_BNV < scores_BNV.amax(dim=-1, keepdim=True) + self._floor_B11
        if self._sorts:
            dropped_BNV |= self._beyond_top(scores_BNV)
        return scores_BNV.masked_fill(dropped_BNV, float("-inf"))

    def _beyond_top(self, scores_BNV: torch.Tensor) -> torch.Tensor:
        sorted_BNV, order_BNV = scores_BNV.sort(dim=-1, descending=True, stable=True)
        rank_V = torch.arange(scores_BNV.shape[-1], device=scores_BNV.device)
        beyond_k_BNV = rank_V >= self._top_k_B11
        mass_BNV = sorted_BNV.double().masked_fill_(beyond_k_BNV, float("-inf")).softmax(dim=-1)
        beyond_p_BNV = mass_BNV.cumsum(dim=-1) - mass_BNV >= self._top_p_B11
        # With top_p = 1 the rounding of the sum must not drop the tail, and the first token always stays.
        beyond_p_BNV &= (self._top_p_B11 < 1) & (rank_V > 0)
        beyond_sorted_BNV = beyond_k_BNV | beyond_p_BNV
        return torch.empty_like(beyond_sorted_BNV).scatter_(-1, order_BNV, beyond_sorted_BNV)
