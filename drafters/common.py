"""What the drafters of this package share: the limit of a draft, and a proposal made from host lists."""

from collections.abc import Sequence

import torch

from specdec.api import Proposal
from specdec.checks import integer

MAX_DRAFT_TOKENS = 31


def check_num_draft_tokens(value: object) -> int:
    """An integer from 1 to 31; raises ConfigError that names ``drafter.num_draft_tokens`` otherwise."""
    return integer("num_draft_tokens", value, low=1, high=MAX_DRAFT_TOKENS, where="drafter.num_draft_tokens")


def proposal_of(drafts: Sequence[Sequence[int]], device: torch.device) -> Proposal | None:
    """Pad one ragged draft per request into a Proposal of point masses; None when all are empty."""
    width = max(map(len, drafts), default=0)
    if width == 0:
        return None
    padded = [[*draft, *([0] * (width - len(draft)))] for draft in drafts]
    return Proposal(
        tokens_BK=torch.tensor(padded, dtype=torch.int64, device=device),
        num_drafted_B=torch.tensor([len(draft) for draft in drafts], dtype=torch.int64, device=device),
    )
