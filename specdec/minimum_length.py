"""The least number of tokens that a request puts out; knows nothing of noise."""

from collections.abc import Sequence

import torch

NO_WEIGHT = float("-inf")


class MinimumLength:
    """Forbids the ids that would end the output while too few tokens are out, decided by position alone.

    first_free  per request the first position at which its output may end
    stop_ids    per request the ids that would end it
    """

    def __init__(
        self, first_free: Sequence[int], stop_ids: Sequence[Sequence[int]], *, vocab_size: int, device: torch.device
    ) -> None:
        self._first_free_B1 = torch.tensor(first_free, device=device).view(-1, 1)
        mask_BV = torch.zeros(len(stop_ids), vocab_size, dtype=torch.bool)
        for b, ids in enumerate(stop_ids):
            mask_BV[b, [i for i in ids if i < vocab_size]] = True
        self._stops_B1V = mask_BV.to(device).unsqueeze(1)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All that ``apply`` reads."""
        return self._first_free_B1, self._stops_B1V

    def apply(self, logits_BNV: torch.Tensor, positions_BN: torch.Tensor) -> torch.Tensor:
        """Logits with -inf for those ids at rows that predict a position too early."""
        early_BN = positions_BN < self._first_free_B1
        return logits_BNV.masked_fill(self._stops_B1V & early_BN.unsqueeze(-1), NO_WEIGHT)
