"""Wrong rules, each a mistake that has been made; ``specdec.certify.mutants`` puts them to the certificate."""

import numpy as np
import torch

from specdec import ratio_rule
from specdec.api import Proposal, TargetSampling, Verdict
from specdec.rules import numbers
from specdec.rules.chain import BlockRule, TokenRatioRule
from specdec.rules.numbers import Array
from specdec.rules.siblings import SiblingRule, judge_siblings
from specdec.verifiers import GumbelVerifier


class SoftmaxResidual(TokenRatioRule):
    """The correction is drawn from the softmax of relu(p - q), not from relu(p - q) normalised."""

    def weights(
        self, target_BNV: Array, draft_BKV: Array, drafted_BK: Array, num_accepted_B: Array, num_drafted_B: Array
    ) -> Array:
        weights_BV = super().weights(target_BNV, draft_BKV, drafted_BK, num_accepted_B, num_drafted_B)
        rejected_B1 = (num_accepted_B < num_drafted_B)[:, None]
        return numbers.where(rejected_B1, np.exp(weights_BV.astype(float)).astype(object), weights_BV)


class DrawFromTarget(TokenRatioRule):
    """The correction is drawn from p."""

    def weights(
        self, target_BNV: Array, draft_BKV: Array, drafted_BK: Array, num_accepted_B: Array, num_drafted_B: Array
    ) -> Array:
        return numbers.row(target_BNV, num_accepted_B)


class DrawFromTargetWithoutDraft(TokenRatioRule):
    """The correction is drawn from p without the drafted token, which is right for point masses only."""

    def weights(
        self, target_BNV: Array, draft_BKV: Array, drafted_BK: Array, num_accepted_B: Array, num_drafted_B: Array
    ) -> Array:
        points_BKV = numbers.point_masses(drafted_BK, target_BNV)
        return super().weights(target_BNV, points_BKV, drafted_BK, num_accepted_B, num_drafted_B)


class FirstUnverified(TokenRatioRule):
    """The first drafted token is never verified."""

    def chances(self, target_BNV: Array, draft_BKV: Array, drafted_BK: Array, num_drafted_B: Array) -> Array:
        chances_BK = super().chances(target_BNV, draft_BKV, drafted_BK, num_drafted_B)
        return numbers.where(numbers.columns(chances_BK) == 0, chances_BK * 0 + 1, chances_BK)


class BonusFromResidual(TokenRatioRule):
    """The bonus after a fully accepted draft is drawn from the residual of the last drafted token."""

    def weights(
        self, target_BNV: Array, draft_BKV: Array, drafted_BK: Array, num_accepted_B: Array, num_drafted_B: Array
    ) -> Array:
        last_B = np.minimum(num_accepted_B, num_drafted_B - 1)
        return super().weights(target_BNV, draft_BKV, drafted_BK, last_B, num_drafted_B)


class BonusOfRowBefore(TokenRatioRule):
    """The bonus is drawn from the target's row before the last."""

    def weights(
        self, target_BNV: Array, draft_BKV: Array, drafted_BK: Array, num_accepted_B: Array, num_drafted_B: Array
    ) -> Array:
        weights_BV = super().weights(target_BNV, draft_BKV, drafted_BK, num_accepted_B, num_drafted_B)
        before_BV = numbers.row(target_BNV, num_drafted_B - 1)
        return numbers.where((num_accepted_B < num_drafted_B)[:, None], weights_BV, before_BV)


class CountsEveryPass(TokenRatioRule):
    """Counts all tokens that pass their test, also those after a rejected one."""

    def count(self, passed_BK: Array, num_drafted_B: Array) -> Array:
        return passed_BK.astype(np.int64).sum(axis=1)


class InvertedRatio(TokenRatioRule):
    """A token is accepted with min(1, q / p)."""

    def chances(self, target_BNV: Array, draft_BKV: Array, drafted_BK: Array, num_drafted_B: Array) -> Array:
        p_BK = numbers.pick(target_BNV[:, :-1], drafted_BK)
        return ratio_rule.acceptance(numbers.pick(draft_BKV, drafted_BK), p_BK)


class ChanceOfPointMass(TokenRatioRule):
    """A sampled token is accepted with p, as a point mass would be, while the residual is that of its law."""

    def chances(self, target_BNV: Array, draft_BKV: Array, drafted_BK: Array, num_drafted_B: Array) -> Array:
        return numbers.pick(target_BNV[:, :-1], drafted_BK)


class MatchesAndDrawsAgain(DrawFromTarget):
    """Accepts a draft that equals a draw of the target, and draws the target again where it does not."""

    def chances(self, target_BNV: Array, draft_BKV: Array, drafted_BK: Array, num_drafted_B: Array) -> Array:
        return numbers.pick(target_BNV[:, :-1], drafted_BK)


class AbsoluteResidual(TokenRatioRule):
    """The correction is drawn from |p - q|."""

    def weights(
        self, target_BNV: Array, draft_BKV: Array, drafted_BK: Array, num_accepted_B: Array, num_drafted_B: Array
    ) -> Array:
        weights_BV = super().weights(target_BNV, draft_BKV, drafted_BK, num_accepted_B, num_drafted_B)
        row_B = np.minimum(num_accepted_B, num_drafted_B - 1)
        distance_BV = abs(numbers.row(target_BNV, row_B) - numbers.row(draft_BKV, row_B))
        usable_B1 = (num_accepted_B < num_drafted_B)[:, None] & (numbers.total(distance_BV) > 0)[:, None]
        return numbers.where(usable_B1, distance_BV, weights_BV)


class BlockWithTokenResidual(BlockRule):
    """Block verification with the residual of the token ratio test: the joint ratio is left out."""

    def weights(
        self, target_BNV: Array, draft_BKV: Array, drafted_BK: Array, num_accepted_B: Array, num_drafted_B: Array
    ) -> Array:
        return TokenRatioRule().weights(target_BNV, draft_BKV, drafted_BK, num_accepted_B, num_drafted_B)


class BlockWithoutExcess(BlockRule):
    """Block verification that tests every prefix with its joint ratio alone."""

    def prefix_chances(self, target_BNV: Array, draft_BKV: Array, drafted_BK: Array, num_drafted_B: Array) -> Array:
        return self.levels(target_BNV, draft_BKV, drafted_BK)


class BlockWithUncutRatio(BlockRule):
    """Block verification whose joint ratio is cut at 1 at the end only."""

    def levels(self, target_BNV: Array, draft_BKV: Array, drafted_BK: Array) -> Array:
        p_BK, q_BK = numbers.pick(target_BNV[:, :-1], drafted_BK), numbers.pick(draft_BKV, drafted_BK)
        return np.minimum(np.cumprod(p_BK / numbers.where(q_BK > 0, q_BK, 1), axis=1), 1)


class CountsLaterMatches(GumbelVerifier):
    """Keeps drafted tokens that match after one that does not."""

    name = "gumbel that counts every match"

    def judge(
        self, logits_BNV: torch.Tensor, proposal: Proposal | None, sampling: TargetSampling, positions_B: torch.Tensor
    ) -> Verdict:
        verdict = super().judge(logits_BNV, proposal, sampling, positions_B)
        matches_BK = verdict.tokens_BN[:, :-1] == proposal.tokens_BK
        counted_BK = matches_BK & (numbers.columns(matches_BK) < proposal.num_drafted_B[:, None])
        return Verdict(tokens_BN=verdict.tokens_BN, num_accepted_B=counted_BK.sum(1))


class CommitsTheMismatch(GumbelVerifier):
    """Ends a round with the drafted token that did not match."""

    name = "gumbel that commits the mismatch"

    def judge(
        self, logits_BNV: torch.Tensor, proposal: Proposal | None, sampling: TargetSampling, positions_B: torch.Tensor
    ) -> Verdict:
        verdict = super().judge(logits_BNV, proposal, sampling, positions_B)
        drafted_BN = torch.cat([proposal.tokens_BK, verdict.tokens_BN[:, -1:]], dim=1)
        is_draft_BN = numbers.columns(drafted_BN) < proposal.num_drafted_B[:, None]
        tokens_BN = torch.where(is_draft_BN, drafted_BN, verdict.tokens_BN)
        return Verdict(tokens_BN=tokens_BN, num_accepted_B=verdict.num_accepted_B)


def siblings_against_target(
    rule: SiblingRule, target_BV: Array, draft_BSV: Array | None, siblings_BS: Array
) -> tuple[Array, Array]:
    """Every sibling is tested against the target's own law; only the correction knows of the rejections."""
    firsts = [_first(rule, target_BV, draft_BSV, siblings_BS, s)[0] for s in range(2)]
    return np.concatenate(firsts, axis=1), judge_siblings(rule, target_BV, draft_BSV, siblings_BS)[1]


def siblings_with_first_residual(
    rule: SiblingRule, target_BV: Array, draft_BSV: Array | None, siblings_BS: Array
) -> tuple[Array, Array]:
    """The correction after all siblings is drawn from the residual of the first."""
    chances_BS, _ = judge_siblings(rule, target_BV, draft_BSV, siblings_BS)
    return chances_BS, _first(rule, target_BV, draft_BSV, siblings_BS, 0)[1]


def _first(
    rule: SiblingRule, target_BV: Array, draft_BSV: Array | None, siblings_BS: Array, s: int
) -> tuple[Array, Array]:
    """What becomes of sibling ``s`` alone."""
    own_BSV = None if draft_BSV is None else draft_BSV[:, s : s + 1]
    return judge_siblings(rule, target_BV, own_BSV, siblings_BS[:, s : s + 1])
