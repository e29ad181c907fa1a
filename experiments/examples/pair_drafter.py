"""Example of a drafter in one file: whatever followed the newest pair of tokens the last time is proposed again."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from drafters.common import proposal_of
from specdec.api import DrafterNeeds, DraftInput, DraftSetup, Proposal


@dataclass(frozen=True, kw_only=True, slots=True)
class PairConfig:
    """Settings: most tokens proposed a round, and how many of the newest tokens are searched."""

    num_draft_tokens: int = 3
    window: int = 512
    needs: DrafterNeeds = DrafterNeeds(history=True)

    def build(self, setup: DraftSetup) -> "PairDrafter":
        return PairDrafter(self, setup.device)


class PairDrafter:
    """Proposes up to ``num_draft_tokens`` tokens; keeps nothing between rounds."""

    def __init__(self, config: PairConfig, device: torch.device) -> None:
        self.num_draft_tokens, self.needs = config.num_draft_tokens, config.needs
        self._window, self._device = config.window, device

    def propose(self, inputs: DraftInput) -> Proposal | None:
        """One draft for each request of the round: at most ``max_draft_B`` tokens, none where none is wanted."""
        requests = zip(inputs.histories, inputs.wanted_B, inputs.max_draft_B, strict=True)
        drafts = [self._continue(history, most) if wanted else () for history, wanted, most in requests]
        return proposal_of(drafts, self._device)

    def _continue(self, history: Sequence[int], most: int) -> Sequence[int]:
        recent = list(history[-self._window :])
        for start in range(len(recent) - 3, -1, -1):
            if recent[start : start + 2] == recent[-2:]:
                return recent[start + 2 :][: min(most, self.num_draft_tokens)]
        return ()

    def forget(self, rows: Sequence[int]) -> None:
        """Called when requests have left; there is nothing to drop."""
