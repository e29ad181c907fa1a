"""Filters top-k, top-p and min-p on log-weights; knows nothing of requests or noise."""

from collections.abc import Sequence

import torch

from specdec.sampling_params import SamplingParams


def num_sorted(params: Sequence[SamplingParams], vocab_size: int) -> int:
    """Largest weights that a batch sorts: what its widest top-k needs, rounded up so that few numbers occur."""
    widest = max((_top_k(p, vocab_size) for p in params if p.has_filters and (p.top_k > 0 or p.top_p < 1)), default=0)
    return min(vocab_size, 1 << (widest - 1).bit_length()) if widest else 0


def _top_k(params: SamplingParams, vocab_size: int) -> int:
    return min(params.top_k, vocab_size) if params.has_filters and params.top_k > 0 else vocab_size


class Filters:
    """The filters of a batch, one entry per request, in the order top-k, top-p (of what is left), min-p.

    Top-k and top-p both keep the first so many tokens in the order of falling weight, ties by rising id. How many
    follows from the sorted weights alone, so the ids are never sorted; the most probable token is always kept.
    """

    def __init__(self, params: Sequence[SamplingParams], *, vocab_size: int, device: torch.device) -> None:
        top_k = [_top_k(p, vocab_size) for p in params]
        top_p = [p.top_p if p.has_filters else 1.0 for p in params]
        min_p = [p.min_p if p.has_filters else 0.0 for p in params]
        sorts = [k < vocab_size or p < 1 for k, p in zip(top_k, top_p, strict=True)]
        self._num_sorted = num_sorted(params, vocab_size)
        self._sorts_B11 = torch.tensor(sorts, device=device).view(-1, 1, 1)
        self._top_k_B11 = torch.tensor(top_k, device=device).view(-1, 1, 1)
        self._top_p_B11 = torch.tensor(top_p, dtype=torch.float64, device=device).view(-1, 1, 1)
        self._floor_B11 = torch.tensor(min_p, dtype=torch.float32, device=device).log_().view(-1, 1, 1)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All that ``apply`` reads."""
        return self._sorts_B11, self._top_k_B11, self._top_p_B11, self._floor_B11

    def apply(self, scores_BNV: torch.Tensor) -> torch.Tensor:
        """float32 log-weights [B, N, V] with -inf where a token is filtered out."""
        dropped_BNV = scores_BNV < scores_BNV.amax(dim=-1, keepdim=True) + self._floor_B11
        if self._num_sorted:
            dropped_BNV |= self._sorts_B11 & ~self._first(scores_BNV)
        return scores_BNV.masked_fill(dropped_BNV, float("-inf"))

    def _first(self, scores_BNV: torch.Tensor) -> torch.Tensor:
        """Whether a token is among those that top-k and top-p keep."""
        # The values of the largest are the same whichever of several equal tokens were taken.
        sorted_BNX = scores_BNV.topk(self._num_sorted, dim=-1).values
        num_BN1 = self._num_kept(sorted_BNX)
        edge_BN1 = sorted_BNX.gather(-1, num_BN1 - 1)
        above_BNV, ties_BNV = scores_BNV > edge_BN1, scores_BNV == edge_BN1
        room_BN1 = num_BN1 - above_BNV.sum(dim=-1, keepdim=True)
        return above_BNV | (ties_BNV & (ties_BNV.cumsum(dim=-1) <= room_BN1))

    def _num_kept(self, sorted_BNX: torch.Tensor) -> torch.Tensor:
        """How many tokens top-k and top-p keep, at least 1; int64 [B, N, 1]."""
        rank_X = torch.arange(sorted_BNX.shape[-1], device=sorted_BNX.device)
        beyond_k_BNX = rank_X >= self._top_k_B11
        mass_BNX = sorted_BNX.double().masked_fill_(beyond_k_BNX, float("-inf")).softmax(dim=-1)
        # With top_p = 1 the rounding of the sum must not drop the tail, and the first token always stays.
        beyond_p_BNX = mass_BNX.cumsum(dim=-1) - mass_BNX >= self._top_p_B11
        beyond_p_BNX &= (self._top_p_B11 < 1) & (rank_X > 0)
        return (~(beyond_k_BNX | beyond_p_BNX)).sum(dim=-1, keepdim=True)
