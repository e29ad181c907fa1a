"""The rules that decide which drafted tokens are committed; know no model, no drafter and no host value.

    GreedyVerifier     the target's most probable token; drafts are kept while they match
    GumbelVerifier     the target's own draw under position-keyed noise; drafts are kept while they match
    RuleVerifier       any rule of specdec.rules.chain, with coins and draws
    RejectionVerifier  of them the token ratio test against the law that the draft was drawn from

Every method is made of device operations only, so that a round can be recorded as a graph.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from specdec import ratio_rule
from specdec.api import Coupling, Proposal, TargetSampling, Verdict
from specdec.errors import UnsupportedError
from specdec.rules import numbers
from specdec.rules.chain import ChainRule, TokenRatioRule, leading_matches
from specdec.trees.matches import match_tree, rows_of


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

    def judge_tree(
        self,
        logits_BNV: torch.Tensor,
        proposal: Proposal,
        sampling: TargetSampling,
        positions_B: torch.Tensor,
    ) -> Verdict:
        """Judge one round of trees; see ``api.TreeVerifier.judge_tree``."""
        view = sampling.along(rows_of(proposal, logits_BNV.shape[1]))
        choice_BN = view.adjust(logits_BNV, proposal.tokens_BK, positions_B).argmax(dim=-1)
        return match_tree(choice_BN, logits_BNV, proposal, view, positions_B)


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

    def judge_tree(
        self,
        logits_BNV: torch.Tensor,
        proposal: Proposal,
        sampling: TargetSampling,
        positions_B: torch.Tensor,
    ) -> Verdict:
        """Judge one round of trees; see ``api.TreeVerifier.judge_tree``."""
        view = sampling.along(rows_of(proposal, logits_BNV.shape[1]))
        choice_BN = view.choose(logits_BNV, proposal.tokens_BK, positions_B)
        return match_tree(choice_BN, logits_BNV, proposal, view, positions_B)


class RuleVerifier:
    """A verifier made of a rule of ``specdec.rules.chain``: it tosses the rule's coins and draws from its weights.

    Acceptance, correction, bonus and the draft's own draw each have noise of their own, so no uniform decides two.
    """

    name: str
    lossless_how = "rule"
    coupling = Coupling.INDEPENDENT

    def __init__(self, rule: ChainRule) -> None:
        self.rule = rule
        self.lossless = rule.lossless

    def judge(
        self,
        logits_BNV: torch.Tensor,
        proposal: Proposal | None,
        sampling: TargetSampling,
        positions_B: torch.Tensor,
    ) -> Verdict:
        """Judge one round; see ``api.Verifier.judge``."""
        width = logits_BNV.shape[1]
        if proposal is None or width == 1 or sampling.all_greedy:
            # Point masses: every rule keeps a draft that is the target's choice and no other.
            drafted_BK = None if proposal is None else proposal.tokens_BK
            tokens_BN = sampling.choose(logits_BNV, drafted_BK, positions_B)
            return _match_verdict(tokens_BN, logits_BNV, proposal, sampling, positions_B, self.name)
        drafted_BK = _chain(proposal, self.name, width).clamp(0, logits_BNV.shape[2] - 1)
        law_BNV = sampling.law(logits_BNV, drafted_BK, positions_B)
        draft_BKV = _draft_law(drafted_BK, proposal, law_BNV)
        num_drafted_B = proposal.num_drafted_B
        chances_BK = self.rule.chances(law_BNV, draft_BKV, drafted_BK, num_drafted_B)
        coins_BX = sampling.acceptance_uniforms(positions_B, 1 if self.rule.one_coin else width - 1)
        num_accepted_B = self.rule.count(coins_BX < chances_BK, num_drafted_B)
        weights_BV = self.rule.weights(law_BNV, draft_BKV, drafted_BK, num_accepted_B, num_drafted_B)
        is_correction_B = num_accepted_B < num_drafted_B
        final_B = sampling.final_draw(weights_BV, positions_B + num_accepted_B, is_correction_B)
        is_draft_BN = torch.arange(width, device=drafted_BK.device) < num_accepted_B.unsqueeze(1)
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


def _draft_law(drafted_BK: torch.Tensor, proposal: Proposal, law_BNV: torch.Tensor) -> torch.Tensor:
    if proposal.probs_BKV is not None:
        return proposal.probs_BKV[:, : drafted_BK.shape[1]]
    return numbers.point_masses(drafted_BK, law_BNV)


class RejectionVerifier(RuleVerifier):
    """The token ratio test: exact in distribution for the law that the draft reports, a point mass without one."""

    name = "rejection"

    def __init__(self) -> None:
        super().__init__(TokenRatioRule())


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
