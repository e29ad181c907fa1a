"""What target and draft gave each drafted token, for the rows of a run that asks for it; decides nothing."""

from dataclasses import dataclass

import torch

from specdec.api import Proposal, TargetSampling
from specdec.trees.matches import rows_of


@dataclass(frozen=True, slots=True)
class TokenProbs:
    """Probabilities of the drafted tokens, float32 [B, N - 1]; entries at or beyond a request's drafts mean nothing.

    target_BK  under the law that plain decoding would draw from at that place (a point mass for a greedy request)
    draft_BK   under the law that the drafter reports, or None without laws
    """

    target_BK: torch.Tensor
    draft_BK: torch.Tensor | None


def token_probs(
    logits_BNV: torch.Tensor, proposal: Proposal | None, sampling: TargetSampling, positions_B: torch.Tensor
) -> TokenProbs | None:
    """Probabilities of what a round verifies, a chain or a tree, or None where that is nothing; device work only.

    Arguments are those of ``api.Verifier.judge``.
    """
    num_drafts, vocab_size = logits_BNV.shape[1] - 1, logits_BNV.shape[2]
    if proposal is None or num_drafts == 0:
        return None
    # Padding may hold any token.
    tokens_BK = proposal.tokens_BK[:, :num_drafts].clamp(0, vocab_size - 1)
    if proposal.parents_BK is None:
        before_BKV = sampling.law(logits_BNV, tokens_BK, positions_B)[:, :-1]
    else:
        tree = rows_of(proposal, num_drafts + 1)
        law_BNV = sampling.along(tree).law(logits_BNV, tokens_BK, positions_B)
        before_BKV = law_BNV.gather(1, tree.parent_row_BK.unsqueeze(2).expand(-1, -1, vocab_size))
    draft_BKV = proposal.probs_BKV
    return TokenProbs(
        target_BK=_own(before_BKV, tokens_BK),
        draft_BK=None if draft_BKV is None else _own(draft_BKV[:, :num_drafts], tokens_BK),
    )


def _own(law_BKV: torch.Tensor, tokens_BK: torch.Tensor) -> torch.Tensor:
    return law_BKV.gather(2, tokens_BK.unsqueeze(2)).squeeze(2)
