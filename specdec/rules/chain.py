"""Rules for chains, written once over a number type; know no noise, no requests and no vocabulary size.

A rule says with what probability each drafted token is kept and what the last token of the round is drawn from. The
verifier turns that into coins and draws; the certificate turns it into exact sums. Dimension letters: ``specdec.api``.
"""

from dataclasses import dataclass
from math import inf
from typing import Protocol

from specdec import ratio_rule
from specdec.rules import numbers
from specdec.rules.numbers import Array


class ChainRule(Protocol):
    """A rule that accepts a leading part of a chain of drafted tokens.

    one_coin  True: one uniform of the round decides all drafted tokens; False: each has a uniform of its own

    Arguments: target law of each row [B, N, V]; law of each drafted token [B, K, V]; the tokens [B, K]; how many of
    them count, 0..K [B].
    """

    lossless: bool
    one_coin: bool

    def chances(self, target_BNV: Array, draft_BKV: Array, drafted_BK: Array, num_drafted_B: Array) -> Array:
        """[B, K]: a token passes when its uniform is below its chance."""

    def count(self, passed_BK: Array, num_drafted_B: Array) -> Array:
        """Accepted tokens, int64 [B]."""

    def weights(
        self, target_BNV: Array, draft_BKV: Array, drafted_BK: Array, num_accepted_B: Array, num_drafted_B: Array
    ) -> Array:
        """Unnormalised law [B, V] of the token that ends the round: correction or bonus."""


def leading_matches(passed_BK: Array, num_drafted_B: Array) -> Array:
    """Length of the leading run of True among the first ``num_drafted_B`` entries of each row; int64 [B]."""
    return numbers.leading_run(passed_BK & (numbers.columns(passed_BK) < num_drafted_B[:, None]))


class TokenRatioRule:
    """Leviathan et al. (2023): each token is accepted with min(1, p / q), a rejection draws from relu(p - q)."""

    lossless = True
    one_coin = False

    def chances(self, target_BNV: Array, draft_BKV: Array, drafted_BK: Array, num_drafted_B: Array) -> Array:
        """See ``ChainRule``."""
        p_BK = numbers.pick(target_BNV[:, :-1], drafted_BK)
        q_BK = numbers.pick(draft_BKV, drafted_BK)
        return ratio_rule.acceptance(numbers.wide(p_BK), numbers.wide(q_BK))

    def count(self, passed_BK: Array, num_drafted_B: Array) -> Array:
        """See ``ChainRule``."""
        return leading_matches(passed_BK, num_drafted_B)

    def weights(
        self, target_BNV: Array, draft_BKV: Array, drafted_BK: Array, num_accepted_B: Array, num_drafted_B: Array
    ) -> Array:
        """See ``ChainRule``."""
        target_BV = numbers.row(target_BNV, num_accepted_B)
        rejected_B = num_accepted_B < num_drafted_B
        # After a fully accepted draft there is no law of a further draft; any row will do.
        draft_BV = numbers.row(draft_BKV, numbers.where(rejected_B, num_accepted_B, 0))
        return numbers.where(rejected_B[:, None], ratio_rule.residual(target_BV, draft_BV), target_BV)


class BlockRule:
    """Block verification (Sun et al., 2024, arXiv 2403.10444, algorithm 2): exact, and accepts at least as many.

    The paper tests every prefix with a uniform of its own and keeps the longest that passes. That is one draw of the
    accepted length, made here with one uniform: a test that fails must not share its uniform with a later round,
    and a uniform keyed by the first position of the round cannot. For the same reason drafts beyond the accepted
    ones, which this rule looks at, must not share their noise with a later round either.
    """

    lossless = True
    one_coin = True

    def chances(self, target_BNV: Array, draft_BKV: Array, drafted_BK: Array, num_drafted_B: Array) -> Array:
        """Probability that at least k + 1 tokens are accepted; never increases along a row."""
        passes_BK = self.prefix_chances(target_BNV, draft_BKV, drafted_BK, num_drafted_B)
        return 1 - numbers.products_to_the_end(1 - passes_BK)

    def prefix_chances(self, target_BNV: Array, draft_BKV: Array, drafted_BK: Array, num_drafted_B: Array) -> Array:
        """The paper's h: probability that the prefix of k + 1 tokens passes its own test [B, K]."""
        levels_BK = self.levels(target_BNV, draft_BKV, drafted_BK)
        scale_BK1 = numbers.cast(levels_BK[:, :-1, None], target_BNV)
        excess_BK = numbers.total(numbers.positive_part(scale_BK1 * target_BNV[:, 1:-1] - draft_BKV[:, 1:]))
        certain_BK = levels_BK[:, :-1] >= 1
        rest_BK = numbers.where(certain_BK, 1, excess_BK + 1 - levels_BK[:, :-1])
        inner_BK = numbers.where(certain_BK, 1, numbers.wide(excess_BK) / rest_BK)
        passes = [inner_BK[:, k] for k in range(inner_BK.shape[1])] + [levels_BK[:, -1]]
        ends_BK = numbers.columns(levels_BK) + 1 - num_drafted_B[:, None]
        at_end_BK = numbers.where(ends_BK == 0, levels_BK, numbers.wide(levels_BK) * 0)
        return numbers.where(ends_BK < 0, numbers.stack(passes), at_end_BK)

    def levels(self, target_BNV: Array, draft_BKV: Array, drafted_BK: Array) -> Array:
        """The paper's p_1..p_K: the ratio of both laws along the chain, cut at 1 after every token [B, K]."""
        p_BK = numbers.wide(numbers.pick(target_BNV[:, :-1], drafted_BK))
        q_BK = numbers.wide(numbers.pick(draft_BKV, drafted_BK))
        ratios_BK = p_BK / numbers.where(q_BK > 0, q_BK, 1)
        levels = [numbers.at_most_one(ratios_BK[:, 0])]
        for k in range(1, ratios_BK.shape[1]):
            levels.append(numbers.at_most_one(levels[-1] * ratios_BK[:, k]))
        return numbers.stack(levels)

    def count(self, passed_BK: Array, num_drafted_B: Array) -> Array:
        """See ``ChainRule``."""
        return leading_matches(passed_BK, num_drafted_B)

    def weights(
        self, target_BNV: Array, draft_BKV: Array, drafted_BK: Array, num_accepted_B: Array, num_drafted_B: Array
    ) -> Array:
        """After n < num_drafted tokens relu(p_n * target - draft), else the target."""
        target_BV = numbers.row(target_BNV, num_accepted_B)
        rejected_B = num_accepted_B < num_drafted_B
        draft_BV = numbers.row(draft_BKV, numbers.where(rejected_B, num_accepted_B, 0))
        levels_BK = self.levels(target_BNV, draft_BKV, drafted_BK)
        last_B = numbers.where(num_accepted_B > 0, num_accepted_B - 1, 0)
        level_B = numbers.where(num_accepted_B > 0, numbers.pick(levels_BK, last_B), 1)
        scaled_BV = numbers.cast(level_B[:, None], target_BNV) * target_BV
        left_BV = numbers.positive_part(scaled_BV - draft_BV)
        is_residual_B1 = rejected_B[:, None] & (numbers.total(left_BV) > 0)[:, None]
        return numbers.where(is_residual_B1, left_BV, target_BV)


@dataclass(frozen=True, kw_only=True, slots=True)
class TypicalRule:
    """Typical acceptance (Cai et al., Medusa, 2024): keeps what the target finds likely enough. Lossy.

    A token is kept when its target probability is at least min(epsilon, delta * exp(-entropy)); the token that ends
    the round is the target's own draw. With ``delta`` infinite it is a plain threshold on the probability.
    """

    epsilon: float
    delta: float = inf

    @property
    def lossless(self) -> bool:
        """False: what it keeps need not follow the target's law."""
        return False

    @property
    def one_coin(self) -> bool:
        return False

    def chances(self, target_BNV: Array, draft_BKV: Array, drafted_BK: Array, num_drafted_B: Array) -> Array:
        """1 where a token is kept, 0 elsewhere."""
        p_BK = numbers.wide(numbers.pick(target_BNV[:, :-1], drafted_BK))
        kept_BK = p_BK >= self.epsilon
        if self.delta != inf:
            kept_BK = kept_BK | (p_BK >= self.delta * numbers.exp(-numbers.entropy(numbers.wide(target_BNV[:, :-1]))))
        return numbers.where(kept_BK & (p_BK > 0), p_BK * 0 + 1, p_BK * 0)

    def count(self, passed_BK: Array, num_drafted_B: Array) -> Array:
        """See ``ChainRule``."""
        return leading_matches(passed_BK, num_drafted_B)

    def weights(
        self, target_BNV: Array, draft_BKV: Array, drafted_BK: Array, num_accepted_B: Array, num_drafted_B: Array
    ) -> Array:
        """The target's own law."""
        return numbers.row(target_BNV, num_accepted_B)
