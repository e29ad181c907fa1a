"""The rules that decide which drafted tokens are committed; know no model, no drafter and no host value.

    GreedyVerifier     the target's most probable token; drafts are kept while they match
    GumbelVerifier     the target's own draw under position-keyed noise; drafts are kept while they match
    RejectionVerifier  the token ratio test against the law that the draft was drawn from

Every method is made of device operations only, so that a round can be captured as a graph.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from specdec import ratio_rule
from specdec.api import Coupling, Proposal, TargetSampling, Verdict
from specdec.errors import UnsupportedError


def leading_matches(matches_BK: torch.Tensor, num_drafted_B: torch.Tensor) -> torch.Tensor:
    """Length of the leading run of True among the first ``num_drafted_B`` entries of each row; int64 [B]."""
    columns_K = torch.arange(matches_BK.shape[1], device=matches_BK.device)
    kept_BK = matches_BK & (columns_K < num_drafted_B.unsqueeze(1))
    return kept_BK.to(torch.int64).cumprod(dim=1).sum(dim=1)


def _chain(proposal: Proposal, name: str, width: int) -> torch.Tensor:
    """Drafted tokens int64 [B, N - 1] of a chain; raises UnsupportedError for a tree."""
    if proposal.parents_BK is not None:
        raise UnsupportedError(f"verifier {name} judges chains; the proposal is a tree (parents_BK is given)")
    return proposal.tokens_BK[:, : width - 1]


def _overlap(
    logits_BNV: torch.Tensor, proposal: Proposal | None, sampling: TargetSampling, positions_B: torch.Tensor
) -> torch.Tensor | None:
    """Overlap of target and draft laws at each drafted position, or None without draft laws."""
    if proposal is None or proposal.probs_BKV is None:
        return None
    law_BNV = sampling.law(logits_BNV, proposal.tokens_BK, positions_B)
    return ratio_rule.overlap(law_BNV[:, :-1], proposal.probs_BKV[:, : law_BNV.shape[1] - 1])


def _match_verdict(
    tokens_BN: torch.Tensor,
    logits_BNV: torch.Tensor,
    proposal: Proposal | None,
    sampling: TargetSampling,
    positions_B: torch.Tensor,
    name: str,
) -> Verdict:
    """Keep drafted tokens while they equal the target's own choice ``tokens_BN``."""
    if proposal is None:
        drafted_BK, num_accepted_B = None, torch.zeros_like(positions_B)
    else:
        drafted_BK = _chain(proposal, name, tokens_BN.shape[1])
        num_accepted_B = leading_matches(tokens_BN[:, :-1] == drafted_BK, proposal.num_drafted_B)
    logprobs_BN = None
    if sampling.wants_logprobs:
        logprobs_BN = sampling.logprobs(logits_BNV, drafted_BK, positions_B, tokens_BN)
    return Verdict(
        tokens_BN=tokens_BN,
        num_accepted_B=num_accepted_B,
        logprobs_BN=logprobs_BN,
        overlap_BK=_overlap(logits_BNV, proposal, sampling, positions_B),
    )


class GreedyVerifier:
    """Commits the target's most probable tokens (lowest id on ties), whatever temperature a request asks for."""

    name = "greedy"
    lossless = True
    lossless_how = "identical to the baseline, token for token"
    coupling = Coupling.GREEDY

    def judge(
        self,
        logits_BNV: torch.Tensor,
        proposal: Proposal | None,
        sampling: TargetSampling,
        positions_B: torch.Tensor,
    ) -> Verdict:
        """Judge one round; see ``api.Verifier.judge``."""
        drafted_BK = None if proposal is None else proposal.tokens_BK
        tokens_BN = sampling.adjust(logits_BNV, drafted_BK, positions_B).argmax(dim=-1)
        return _match_verdict(tokens_BN, logits_BNV, proposal, sampling, positions_B, self.name)


class GumbelVerifier:
    """Commits the target's own draw at every position; the noise depends on stream and position only.

    So the output is that of plain decoding for any draft. A drafter that draws with the same noise agrees nearly as
    often as the ratio test accepts.
    """

    name = "gumbel"
    lossless = True
    lossless_how = "identical to the baseline, token for token"
    coupling = Coupling.SHARED

    def judge(
        self,
        logits_BNV: torch.Tensor,
        proposal: Proposal | None,
        sampling: TargetSampling,
        positions_B: torch.Tensor,
    ) -> Verdict:
        """Judge one round; see ``api.Verifier.judge``."""
        drafted_BK = None if proposal is None else proposal.tokens_BK
        tokens_BN = sampling.choose(logits_BNV, drafted_BK, positions_B)
        return _match_verdict(tokens_BN, logits_BNV, proposal, sampling, positions_B, self.name)


class RejectionVerifier:
    """The token ratio test: exact in distribution for the law that the draft reports, a point mass without one.

    Acceptance, correction, bonus and the draft's own draw each have noise of their own, so no uniform decides two.
    """

    name = "rejection"
    lossless = True
    lossless_how = "rule"
    coupling = Coupling.INDEPENDENT

    def judge(
        self,
        logits_BNV: torch.Tensor,
        proposal: Proposal | None,
        sampling: TargetSampling,
        positions_B: torch.Tensor,
    ) -> Verdict:
        """Judge one round; see ``api.Verifier.judge``."""
        if proposal is None or sampling.all_greedy:
            # Point masses: the ratio is 1 where a draft is the target's choice and 0 elsewhere.
            drafted_BK = None if proposal is None else proposal.tokens_BK
            tokens_BN = sampling.choose(logits_BNV, drafted_BK, positions_B)
            return _match_verdict(tokens_BN, logits_BNV, proposal, sampling, positions_B, self.name)
        width = logits_BNV.shape[1]
        drafted_BK = _chain(proposal, self.name, width).clamp(0, logits_BNV.shape[2] - 1)
        law_BNV = sampling.law(logits_BNV, drafted_BK, positions_B)
        draft_BKV = self._draft_law(drafted_BK, proposal, law_BNV)
        num_accepted_B = self._accept(law_BNV, draft_BKV, drafted_BK, proposal, sampling, positions_B)
        final_B = self._final(law_BNV, draft_BKV, num_accepted_B, proposal, sampling, positions_B)
        columns_N = torch.arange(width, device=drafted_BK.device)
        is_draft_BN = columns_N < num_accepted_B.unsqueeze(1)
        tokens_BN = torch.where(is_draft_BN, F.pad(drafted_BK, (0, 1)), final_B.unsqueeze(1))
        logprobs_BN = None
        if sampling.wants_logprobs:
            logprobs_BN = sampling.logprobs(logits_BNV, drafted_BK, positions_B, tokens_BN)
        has_law = proposal.probs_BKV is not None
        return Verdict(
            tokens_BN=tokens_BN,
            num_accepted_B=num_accepted_B,
            logprobs_BN=logprobs_BN,
            overlap_BK=ratio_rule.overlap(law_BNV[:, :-1], draft_BKV) if has_law else None,
        )

    @staticmethod
    def _draft_law(drafted_BK: torch.Tensor, proposal: Proposal, law_BNV: torch.Tensor) -> torch.Tensor:
        if proposal.probs_BKV is not None:
            return proposal.probs_BKV[:, : drafted_BK.shape[1]]
        return torch.zeros_like(law_BNV[:, :-1]).scatter_(-1, drafted_BK.unsqueeze(-1), 1.0)

    @staticmethod
    def _accept(
        law_BNV: torch.Tensor,
        draft_BKV: torch.Tensor,
        drafted_BK: torch.Tensor,
        proposal: Proposal,
        sampling: TargetSampling,
        positions_B: torch.Tensor,
    ) -> torch.Tensor:
        ids_BK1 = drafted_BK.unsqueeze(-1)
        p_BK = law_BNV[:, :-1].gather(-1, ids_BK1).squeeze(-1).double()
        q_BK = draft_BKV.gather(-1, ids_BK1).squeeze(-1).double()
        coins_BK = sampling.acceptance_uniforms(positions_B, drafted_BK.shape[1])
        return leading_matches(coins_BK < ratio_rule.acceptance(p_BK, q_BK), proposal.num_drafted_B)

    @staticmethod
    def _final(
        law_BNV: torch.Tensor,
        draft_BKV: torch.Tensor,
        num_accepted_B: torch.Tensor,
        proposal: Proposal,
        sampling: TargetSampling,
        positions_B: torch.Tensor,
    ) -> torch.Tensor:
        """The correction after a rejection or, after a fully accepted draft, the bonus; int64 [B]."""
        vocab_size = law_BNV.shape[2]
        row_B11 = num_accepted_B.view(-1, 1, 1).expand(-1, 1, vocab_size)
        target_BV = law_BNV.gather(1, row_B11).squeeze(1)
        draft_BV = F.pad(draft_BKV, (0, 0, 0, 1)).gather(1, row_B11).squeeze(1)
        rejected_B = num_accepted_B < proposal.num_drafted_B
        weights_BV = torch.where(rejected_B.unsqueeze(1), ratio_rule.residual(target_BV, draft_BV), target_BV)
        return sampling.final_draw(weights_BV, positions_B + num_accepted_B, rejected_B)


@dataclass(frozen=True, kw_only=True, slots=True)
class GreedyVerifierConfig:
    """Verification by the target's most probable token."""

    def build(self) -> GreedyVerifier:
        """Make the verifier."""
        return GreedyVerifier()


@dataclass(frozen=True, kw_only=True, slots=True)
class GumbelVerifierConfig:
    """Verification by the target's own draw under position-keyed noise."""

    def build(self) -> GumbelVerifier:
        """Make the verifier."""
        return GumbelVerifier()


@dataclass(frozen=True, kw_only=True, slots=True)
class RejectionVerifierConfig:
    """Verification by the token ratio test."""

    def build(self) -> RejectionVerifier:
        """Make the verifier."""
        return RejectionVerifier()
